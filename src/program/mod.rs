//! Programs: this one, and those that are kept here for hosts of other machines, as they are placed
//! on hosts that have none. A program is known by its BLAKE3, so that the same one is found again.

pub mod placed;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::error::{Error, Kind, Result, Side};

/// This very program, whatever has its name by now.
const ITSELF: &str = "/proc/self/exe";

/// What packages may bring: programs in directories that are named for their targets.
const SYSTEM_DIRECTORY: &str = "/usr/lib/fastcp";

/// And what users may, below their home directory.
const USER_DIRECTORY: &str = ".local/share/fastcp";

/// Of a BLAKE3 in hexadecimal.
const DIGEST_LEN: usize = 64;

/// Bytes that are read at a time.
pub const PIECE: usize = 64 << 10;

#[derive(Debug)]
pub struct Program {
    file: File,
    path: PathBuf,
    digest: String,
    length: u64,
}

impl Program {
    /// This one. Read once, in some 2 ms.
    ///
    /// # Errors
    /// `Kind::FarEnd` where there is no /proc.
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

    /// The one for a Linux host that `uname -m` calls `machine`: of what is kept for it here, or
    /// this one. None if there is none.
    ///
    /// # Errors
    /// `Kind::FarEnd` for one that cannot be read.
    pub fn for_machine(machine: &str) -> Result<Option<Program>> {
        let is_same = target_of(machine) == target_of(std::env::consts::ARCH);
        // One that is linked statically runs on any host of its kind.
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

    /// BLAKE3, in hexadecimal.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    pub fn length(&self) -> u64 {
        self.length
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Of what is there for a host which has nothing better, in hexadecimal.
    ///
    /// # Errors
    /// `Kind::FarEnd`, if it cannot be read any more.
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

    /// All of it by gzip, about two fifths of it. The fastest level, in some 100 ms: the next ones
    /// save a tenth of what travels and take three times as long.
    ///
    /// # Errors
    /// `Kind::FarEnd`, if it cannot be read any more.
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

    /// Reads what stands at `offset`; 0 at its end.
    ///
    /// # Errors
    /// `Kind::FarEnd`.
    pub fn read(&self, into: &mut [u8], offset: u64) -> Result<usize> {
        let what = "cannot read the program";
        let read = self.file.read_at(into, offset);
        read.map_err(|cause| Error::io(Kind::FarEnd, Side::Here, &self.path, what, cause))
    }
}

/// True of a digest as a program's directory and its hello have it.
pub fn is_digest(text: &str) -> bool {
    text.len() == DIGEST_LEN && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Where programs for other machines are looked for.
fn directories() -> Vec<PathBuf> {
    let home = std::env::home_dir().map(|home| home.join(USER_DIRECTORY));
    let system = PathBuf::from(SYSTEM_DIRECTORY);
    home.into_iter().chain([system]).collect()
}

/// Where a user is to put a program for `machine`.
pub fn wanted_path(machine: &str) -> String {
    format!("~/{USER_DIRECTORY}/{}/fastcp", target_of(machine))
}

/// What Rust calls the statically linked target of a machine as `uname -m` names it; of those
/// that it does not know, the machine's name.
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
