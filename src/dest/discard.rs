//! /dev/null, the destination of a link test.

use rustix::fs::{FileType, Stat, major, minor};

use crate::manifest::file_type;

/// The device number of /dev/null on Linux, whatever its name is.
const NULL: (u32, u32) = (1, 3);

/// True for /dev/null.
pub fn is_sink(stat: &Stat) -> bool {
    file_type(stat) == FileType::CharacterDevice
        && (major(stat.st_rdev), minor(stat.st_rdev)) == NULL
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dev_null_is_known_by_its_number() {
        let is = |path: &str| is_sink(&rustix::fs::stat(path).unwrap());
        assert!(is("/dev/null"));
        assert!(!is("/dev/zero") && !is("/"));
    }
}
