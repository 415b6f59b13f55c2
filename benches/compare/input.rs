//! Inputs of the comparison, which are made once and kept in a directory for the next run.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::shell;

pub(crate) struct Input {
    pub name: String,
    pub path: PathBuf,
    /// Bytes of content; of a sparse file its apparent size.
    pub bytes: u64,
    /// How it was made, for the table.
    pub about: String,
}

/// Bytes and files of each input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub random: u64,
    pub database: u64,
    pub log: u64,
    /// Apparent size of a sparse image; an eighth of it is data.
    pub sparse: u64,
    pub files: u32,
}

impl Sizes {
    pub(crate) const FULL: Sizes = Sizes {
        random: 2 << 30,
        database: 1536 << 20,
        log: 1 << 30,
        sparse: 8 << 30,
        files: 20_000,
    };
    /// The sizes multiplied by `by`.
    pub(crate) fn scaled(&self, by: f64) -> Sizes {
        let scaled = |bytes: u64| ((bytes as f64 * by) as u64).max(1);
        Sizes {
            random: scaled(self.random),
            database: scaled(self.database),
            log: scaled(self.log),
            sparse: scaled(self.sparse),
            files: scaled(self.files.into()) as u32,
        }
    }

    /// Enough to see that everything works.
    pub(crate) const QUICK: Sizes = Sizes {
        random: 8 << 20,
        database: 8 << 20,
        log: 8 << 20,
        sparse: 64 << 20,
        files: 200,
    };
}

/// Makes the input of this name below `work`, unless an earlier run has made it.
pub(crate) fn make(name: &str, sizes: &Sizes, work: &Path) -> Result<Input, String> {
    let fault = |cause: io::Error| format!("cannot make {name}: {cause}");
    let wanted = match name {
        "random" => sizes.random,
        "database" => sizes.database,
        "log" => sizes.log,
        "sparse" => sizes.sparse,
        "files" => u64::from(sizes.files),
        _ => return Err(format!("there is no input {name}")),
    };
    // Another size gets another name.
    let path = work.join(format!("{name}-{wanted}"));
    let note = work.join(format!("{name}-{wanted}.about"));
    if !note.exists() {
        let about = match name {
            "random" => random(&path, wanted),
            "database" => database(&path, wanted, work),
            "log" => log(&path, wanted),
            "sparse" => sparse(&path, wanted),
            _ => files(&path, sizes.files),
        };
        fs::write(&note, about.map_err(fault)?).map_err(fault)?;
    }
    Ok(Input {
        name: name.to_owned(),
        bytes: bytes_below(&path).map_err(fault)?,
        about: fs::read_to_string(&note).map_err(fault)?,
        path,
    })
}

impl Input {
    /// The input that the user named.
    pub(crate) fn given(path: PathBuf) -> Result<Input, String> {
        let fault = |cause: io::Error| format!("{}: {cause}", path.display());
        let path = path.canonicalize().map_err(fault)?;
        Ok(Input {
            name: path.display().to_string(),
            bytes: bytes_below(&path).map_err(fault)?,
            about: String::new(),
            path,
        })
    }

    /// Its first `bytes` bytes, or of a tree enough entries for that many. The whole input if it
    /// has no more.
    pub(crate) fn cut(&self, bytes: u64, work: &Path) -> Result<Input, String> {
        if bytes >= self.bytes {
            return Ok(Input {
                name: self.name.clone(),
                path: self.path.clone(),
                bytes: self.bytes,
                about: self.about.clone(),
            });
        }
        let fault = |cause: io::Error| format!("cannot cut {}: {cause}", self.name);
        let path = work.join(format!("{}-cut", self.name));
        remove(&path).map_err(fault)?;
        if self.path.is_dir() {
            fs::create_dir(&path).map_err(fault)?;
            let mut left = bytes;
            for entry in fs::read_dir(&self.path).map_err(fault)? {
                let from = entry.map_err(fault)?.path();
                left = left.saturating_sub(bytes_below(&from).map_err(fault)?);
                let mut copy = Command::new("cp");
                copy.arg("-r").arg(&from).arg(&path);
                shell::finish(copy)?;
                if left == 0 {
                    break;
                }
            }
        } else {
            // Blocks of zeros stay holes.
            let mut copy = Command::new("dd");
            copy.args(["bs=1M", "conv=sparse", "iflag=count_bytes"]);
            copy.args([
                format!("count={bytes}"),
                format!("if={}", self.path.display()),
            ]);
            copy.arg(format!("of={}", path.display()));
            shell::finish(copy)?;
            let file = File::options().write(true).open(&path).map_err(fault)?;
            file.set_len(bytes).map_err(fault)?;
        }
        Ok(Input {
            name: self.name.clone(),
            bytes: bytes_below(&path).map_err(fault)?,
            about: self.about.clone(),
            path,
        })
    }
}

pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(_) => Ok(()),
    }
}

fn bytes_below(path: &Path) -> io::Result<u64> {
    let meta = path.symlink_metadata()?;
    if !meta.is_dir() {
        return Ok(meta.len());
    }
    fs::read_dir(path)?
        .map(|entry| bytes_below(&entry?.path()))
        .sum()
}

/// Bytes that depend on `seed` only.
fn chance(seed: &str) -> blake3::OutputReader {
    blake3::Hasher::new().update(seed.as_bytes()).finalize_xof()
}

fn number(chance: &mut blake3::OutputReader) -> u64 {
    let mut bytes = [0; 8];
    chance.fill(&mut bytes);
    u64::from_le_bytes(bytes)
}

fn random(path: &Path, len: u64) -> io::Result<String> {
    io::copy(&mut chance("random").take(len), &mut File::create(path)?)?;
    Ok("random bytes".to_owned())
}

const PATHS: [&str; 5] = ["/", "/login", "/api/v2/items", "/static/app.css", "/search"];

fn log(path: &Path, len: u64) -> io::Result<String> {
    let mut out = BufWriter::new(File::create(path)?);
    let mut chance = chance("log");
    let (mut written, mut at) = (0, 1_790_000_000u64);
    while written < len {
        let it = number(&mut chance);
        at += it % 3;
        let line = format!(
            "{at}.{:03} 10.{}.{}.{} GET {} {} {} {:.3}\n",
            it >> 8 & 0x1ff,
            it >> 16 & 3,
            it >> 18 & 0xff,
            it >> 26 & 0xff,
            PATHS[(it >> 34) as usize % PATHS.len()],
            if it >> 40 & 0xf == 0 { 404 } else { 200 },
            it >> 44 & 0xffff,
            (it >> 60) as f64 / 7.0,
        );
        out.write_all(line.as_bytes())?;
        written += line.len() as u64;
    }
    out.flush()?;
    Ok("lines of a web server's log".to_owned())
}

/// Data in pieces of 1 MiB, with holes of 7 MiB between them.
fn sparse(path: &Path, len: u64) -> io::Result<String> {
    const PIECE: u64 = 1 << 20;
    let mut file = File::create(path)?;
    let mut bytes = chance("sparse");
    for at in (0..len).step_by(8 * PIECE as usize) {
        file.seek(SeekFrom::Start(at))?;
        io::copy(&mut (&mut bytes).take(PIECE.min(len - at)), &mut file)?;
    }
    file.set_len(len)?;
    Ok("a sparse image, an eighth of it random data, the rest holes".to_owned())
}

/// Files of 100 bytes to 16 KB, half of them text, a hundred per directory.
fn files(path: &Path, count: u32) -> io::Result<String> {
    remove(path)?;
    let mut chance = chance("files");
    for nth in 0..count {
        let dir = path.join(format!("d{}", nth / 100));
        if nth % 100 == 0 {
            fs::create_dir_all(&dir)?;
        }
        let it = number(&mut chance);
        let mut content = vec![0; 100 + (it % 16_000) as usize * (it >> 32 & 0xff) as usize / 255];
        chance.fill(&mut content);
        if nth % 2 == 0 {
            for byte in &mut content {
                *byte = b"etaoin shrdlu\n"[usize::from(*byte) % 14];
            }
        }
        fs::write(dir.join(format!("f{nth}")), content)?;
    }
    Ok(format!(
        "{count} files of 100 bytes to 16 KB, half of them text"
    ))
}

/// Table files of an installed PostgreSQL. If none is installed, generated pages.
fn database(path: &Path, len: u64, work: &Path) -> io::Result<String> {
    let dir = work.join("postgres");
    let script = include_str!("database.sh");
    let made = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(&dir)
        .arg(path)
        .arg(len.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()?;
    remove(&dir)?;
    if made.success() {
        File::options().write(true).open(path)?.set_len(len)?;
        return Ok("PostgreSQL's files of pgbench and of a table of mixed rows".to_owned());
    }
    eprintln!("compare: no PostgreSQL here (initdb, postgres, pgbench, psql): pages are generated");
    let mut out = BufWriter::new(File::create(path)?);
    let pages = fastcp::app::probe::sample::CodecSample::of_pages();
    let mut left = len as usize;
    for (nth, chunk) in pages.chunks.iter().cycle().enumerate() {
        let mut chunk = chunk.clone();
        // No two chunks are alike.
        let salt = (nth as u32).to_le_bytes();
        chunk
            .chunks_mut(61)
            .for_each(|row| row[0] ^= salt[0] ^ salt[1]);
        let take = chunk.len().min(left);
        out.write_all(&chunk[..take])?;
        left -= take;
        if left == 0 {
            break;
        }
    }
    out.flush()?;
    Ok("generated database pages (no PostgreSQL was there)".to_owned())
}
