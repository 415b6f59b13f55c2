//! `--clean`: removes what copies have left in a directory, here or on a host.

use std::path::PathBuf;

use super::retries;
use crate::dest::{CleanedDirectory, stored_user_key};
use crate::error::Result;
use crate::pipeline::leftovers::{Cleaning, FOUND_MAX};
use crate::session::client::{self, Session};
use crate::session::context::ClientContext;
use crate::session::request::Request;
use crate::session::runtime::off_task;

/// Returns the route.
///
/// # Errors
/// Those of a session; `Kind::Write` and `Kind::Usage` if there is no such directory.
pub async fn run(request: &Request, client: &ClientContext) -> Result<String> {
    if request.host().is_none() {
        return here(request, client).await;
    }
    let run = async |request: &Request, client: &ClientContext, session: Session<'_>| {
        client::clean(request, client, session).await
    };
    retries::repeat(request, client, run, || client.begin_again()).await
}

async fn here(request: &Request, client: &ClientContext) -> Result<String> {
    let (path, dry_run) = (request.dest.path.clone(), request.options.dry_run);
    let told = client.clone();
    let clean = off_task(move || {
        let directory = CleanedDirectory::find(&path, (PathBuf::new(), false), None)?;
        let cleaning = Cleaning {
            directory: &directory,
            user: stored_user_key(),
            dry_run,
            found_max: FOUND_MAX,
            is_ending: &|| told.shutdown.cause().is_some(),
            tell: &|leftover| told.take_leftover(leftover),
        };
        cleaning.run();
        Ok(())
    });
    tokio::select! {
        cleaned = clean => cleaned??,
        () = client.shutdown.wait() => return Err(client.shutdown.error()),
    }
    Ok("local".to_owned())
}
