//! How streams come about: by dialling the other host, or in memory where both ends are in this
//! process. A route gives connections whose other end has proven itself, and nothing else.

pub mod direct;
