//! The settings that suited a pair of hosts in the last copy, and the small file that stores them.
//!
//! The file is safe to lose: an unreadable file counts as missing.

use serde::{Deserialize, Serialize};

use super::bounds::STREAMS_MAX;
use super::method::rung;
use crate::outcome::Remembered;

/// The number of the file's format. A file with another number is ignored.
const VERSION: u32 = 1;

/// The most pairs to keep, those used last: more than anybody copies between.
const ROUTES_MAX: usize = 200;

/// The longest name of a pair; longer ones are not kept, so that the file stays below
/// [`FILE_MAX`].
const NAME_MAX: usize = 255;

/// A longer file was not written by this program.
pub const FILE_MAX: usize = 128 << 10;

/// The remembered settings of every pair of hosts, the pair used last first.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct RememberedRoutes {
    version: u32,
    routes: Vec<(String, Remembered)>,
}

impl RememberedRoutes {
    /// Reads a file. Returns no routes if `text` is too long, malformed or of another version;
    /// [`RememberedRoutes::get`] checks the values.
    pub fn read(text: &[u8]) -> RememberedRoutes {
        if text.len() > FILE_MAX {
            return RememberedRoutes::default();
        }
        let mut read: RememberedRoutes = serde_json::from_slice(text).unwrap_or_default();
        if read.version != VERSION {
            return RememberedRoutes::default();
        }
        read.routes.truncate(ROUTES_MAX);
        read
    }

    /// The content of the file, at most [`FILE_MAX`] bytes.
    pub fn to_text(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub fn get(&self, name: &str) -> Option<Remembered> {
        let (_, found) = self.routes.iter().find(|(other, _)| other == name)?;
        Some(*found).filter(is_sound)
    }

    /// Stores a pair's settings. Settings that the user forced keep their earlier value;
    /// impossible values are not stored.
    pub fn put(&mut self, name: &str, mut what: Remembered) {
        if name.len() > NAME_MAX || !is_sound(&what) {
            return;
        }
        if let Some(before) = self.get(name) {
            what.streams = what.streams.or(before.streams);
            what.method = what.method.or(before.method);
        }
        self.version = VERSION;
        self.routes.retain(|(other, _)| other != name);
        self.routes.insert(0, (name.to_owned(), what));
        self.routes.truncate(ROUTES_MAX);
    }
}

/// True if the tuner can begin with these settings.
fn is_sound(remembered: &Remembered) -> bool {
    let may_use = |streams| (1..=STREAMS_MAX).contains(&streams);
    remembered.streams.is_none_or(may_use)
        && remembered
            .method
            .is_none_or(|method| rung(method).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::Method;

    fn remembered(streams: u16) -> Remembered {
        Remembered {
            round_trip_us: 50_000,
            streams: Some(streams),
            method: Some(Method::Zstd(3)),
        }
    }

    #[test]
    fn what_was_put_is_there_the_next_time() {
        let mut routes = RememberedRoutes::default();
        routes.put("a b", remembered(32));
        let text = routes.to_text();
        assert_eq!(
            String::from_utf8_lossy(&text),
            r#"{"version":1,"routes":[["a b",{"round_trip_us":50000,"streams":32,"method":{"Zstd":3}}]]}"#
        );
        assert_eq!(
            RememberedRoutes::read(&text).get("a b"),
            Some(remembered(32))
        );
        assert_eq!(RememberedRoutes::read(&text).get("b a"), None);
    }

    #[test]
    fn garbage_reads_as_nothing() {
        let mut routes = RememberedRoutes::default();
        routes.put("a", remembered(32));
        let text = String::from_utf8(routes.to_text()).expect("JSON");
        for bad in [
            String::new(),
            "\0\u{1b}".to_owned(),
            "[".repeat(100_000),
            text[1..].to_owned(),
            text[..text.len() - 1].to_owned(),
            text.replace("\"version\":1", "\"version\":2"),
            text.replace("32", "0"),
            text.replace("32", "257"),
            text.replace("32", "-1"),
            text.replace("{\"Zstd\":3}", "{\"Zstd\":23}"),
            text.replace('}', &format!("}}{}", " ".repeat(FILE_MAX))),
        ] {
            assert_eq!(
                RememberedRoutes::read(bad.as_bytes()).get("a"),
                None,
                "{:.100}",
                bad
            );
        }
        assert!(RememberedRoutes::read(text.as_bytes()).get("a").is_some());
    }

    #[test]
    fn the_file_stays_small_and_forgets_what_is_oldest() {
        let mut routes = RememberedRoutes::default();
        let long = "\"".repeat(NAME_MAX - 4);
        for pair in 0..ROUTES_MAX + 10 {
            routes.put(&format!("{long}{pair}"), remembered(1));
        }
        assert!(routes.to_text().len() <= FILE_MAX);
        assert!(routes.get(&format!("{long}9")).is_none());
        assert!(routes.get(&format!("{long}10")).is_some());
    }
}
