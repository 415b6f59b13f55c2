//! The fastcp programs that can be installed on hosts without one: this program, and builds for
//! other processors. Installed programs are identified by their BLAKE3.

pub mod placed;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::error::{Error, Kind, Result, Side};

/// This program's file, even if another file has its name by now.
const ITSELF: &str = "/proc/self/exe";

/// Where packages may install programs, in directories named after their targets.
const SYSTEM_DIRECTORY: &str = "/usr/lib/fastcp";

/// The same for users, below their home directory.
const USER_DIRECTORY: &str = ".local/share/fastcp";

/// Length of a BLAKE3 in hexadecimal.
const DIGEST_LEN: usize = 64;

/// Bytes read at a time.
pub const PIECE: usize = 64 << 10;

#[derive(Debug)]
pub struct Program {
    file: File,
    path: PathBuf,
    digest: String,
    length: u64,
}

impl Program {
    /// The running program. It is read once, in about 2 ms.
    ///
    /// # Errors
    /// `Kind::FarEnd` if there is no /proc.
    pub fn own() -> Result<&'static Program> {
        static OWN: OnceLock<Program> = OnceLock::new();
        if let Some(own) = OWN.get() {
            return Ok(own);
        }
        let own = Program::open(Path::new(ITSELF))?;
        Ok(OWN.get_or_init(|| own))
    }

    fn open(path: &Path) -> Result<Program> {
        let opened = || {
            let file = File::open(path)?;
            let mut hasher = blake3::Hasher::new();
            hasher.update_reader(&file)?;
            let (digest, length) = (hasher.finalize().to_hex().to_string(), hasher.count());
            io::Result::Ok(Program {
                file,
                path: path.to_owned(),
                digest,
                length,
            })
        };
        let what = "cannot read the program";
        opened().map_err(|cause| Error::io(Kind::FarEnd, Side::Here, path, what, cause))
    }

    /// The program for a Linux host for which `uname -m` prints `machine`: one kept on this host,
    /// or the running program. None if there is none.
    ///
    /// # Errors
    /// `Kind::FarEnd` if the program cannot be read.
    pub fn for_machine(machine: &str) -> Result<Option<Program>> {
        let is_same = target_of(machine) == target_of(std::env::consts::ARCH);
        // A statically linked program runs on any host of its architecture.
        if is_same && cfg!(target_env = "musl") {
            return Program::open(Path::new(ITSELF)).map(Some);
        }
        let kept = directories()
            .into_iter()
            .map(|dir| dir.join(target_of(machine)).join("fastcp"))
            .find(|path| path.is_file());
        match kept {
            Some(path) => Program::open(&path).map(Some),
            None if is_same => Program::open(Path::new(ITSELF)).map(Some),
            None => Ok(None),
        }
    }

    /// Its BLAKE3, in hexadecimal.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    pub fn length(&self) -> u64 {
        self.length
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its SHA-256 in hexadecimal, which a host without fastcp can check with `sha256sum`.
    ///
    /// # Errors
    /// `Kind::FarEnd` if the program can no longer be read.
    pub fn sha256(&self) -> Result<String> {
        let mut context = aws_lc_rs::digest::Context::new(&aws_lc_rs::digest::SHA256);
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        loop {
            match self.read(&mut piece, at)? {
                0 => break,
                read => {
                    context.update(&piece[..read]);
                    at += read as u64;
                }
            }
        }
        let digest = context.finish();
        Ok(digest.as_ref().iter().map(|b| format!("{b:02x}")).collect())
    }

    /// The program compressed by gzip, to about two fifths of its size. Uses the fastest level
    /// (about 100 ms): the next levels send a tenth less and take three times as long.
    ///
    /// # Errors
    /// `Kind::FarEnd` if the program can no longer be read.
    pub fn gzipped(&self) -> Result<Vec<u8>> {
        use std::io::Write;
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        let what = "cannot compress the program";
        let failed = |cause| Error::io(Kind::FarEnd, Side::Here, &self.path, what, cause);
        loop {
            match self.read(&mut piece, at)? {
                0 => return encoder.finish().map_err(failed),
                read => {
                    encoder.write_all(&piece[..read]).map_err(failed)?;
                    at += read as u64;
                }
            }
        }
    }

    /// Reads from `offset`; returns 0 at the end.
    ///
    /// # Errors
    /// `Kind::FarEnd`.
    pub fn read(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let what = "cannot read the program";
        let read = self.file.read_at(into, offset);
        read.map_err(|cause| Error::io(Kind::FarEnd, Side::Here, &self.path, what, cause))
    }
}

/// True for a digest in the form that directory names and the hello use.
pub fn is_digest(text: &str) -> bool {
    text.len() == DIGEST_LEN && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Directories with programs for other machines, in order of preference.
fn directories() -> Vec<PathBuf> {
    let home = std::env::home_dir().map(|home| home.join(USER_DIRECTORY));
    let system = PathBuf::from(SYSTEM_DIRECTORY);
    home.into_iter().chain([system]).collect()
}

/// The path at which a user should put a program for `machine`.
pub fn wanted_path(machine: &str) -> String {
    format!("~/{USER_DIRECTORY}/{}/fastcp", target_of(machine))
}

/// Rust's name of the statically linked target for a machine as printed by `uname -m`. For an
/// unknown machine, the machine's name itself.
pub fn target_of(machine: &str) -> &str {
    match machine {
        "x86_64" | "amd64" => "x86_64-unknown-linux-musl",
        "aarch64" | "arm64" => "aarch64-unknown-linux-musl",
        "armv7l" | "arm" => "armv7-unknown-linux-musleabihf",
        "i386" | "i586" | "i686" | "x86" => "i686-unknown-linux-musl",
        "riscv64" => "riscv64gc-unknown-linux-musl",
        "ppc64le" | "powerpc64" => "powerpc64le-unknown-linux-musl",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_known_by_its_digests() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("p");
        std::fs::write(&path, b"abc").unwrap();
        let program = Program::open(&path).unwrap();
        assert_eq!(program.digest(), blake3::hash(b"abc").to_hex().as_str());
        assert_eq!(program.length(), 3);
        // The example of FIPS 180.
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(program.sha256().unwrap(), sha256);
    }

    #[test]
    fn a_machine_has_a_directory_of_its_own() {
        assert_eq!(
            wanted_path("aarch64"),
            "~/.local/share/fastcp/aarch64-unknown-linux-musl/fastcp"
        );
        assert_eq!(
            wanted_path("loongarch64"),
            "~/.local/share/fastcp/loongarch64/fastcp"
        );
        assert_eq!(target_of("amd64"), target_of("x86_64"));
    }
}
