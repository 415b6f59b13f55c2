//! Lists of files to copy (`--files-from`), and copies that keep the paths of their sources
//! (`--relative`).
//!
//! Names are paths below a base directory. A [`FileList`] has them sorted component by component, so
//! that it can be walked like a tree: each directory before its entries, and each name once.

use std::cmp::Ordering;
use std::io::{self, BufRead, Read};
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result, reason_of};

/// Most bytes of all names in a list.
pub const LIST_BYTES_MAX: usize = 256 << 20;

/// Most names in a list. Each takes 12 bytes of memory besides its text.
pub const LIST_NAMES_MAX: usize = 1 << 22;

/// Most directories in which names of one list begin (`BASE/./NAME`).
pub const BASES_MAX: usize = 1024;

/// Most bytes of a list that are read, with comments, empty names and the directories before `/./`.
pub const LIST_READ_MAX: usize = 2 * LIST_BYTES_MAX;

/// The longest path, in bytes; the limit of Linux.
const LINE_MAX: usize = 4096;

/// A copy whose files keep their paths below the destination.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelativeCopy {
    /// `--no-implied-dirs`: directories that nobody named keep their metadata if they exist, and
    /// get the usual metadata of new directories if not.
    pub plain_parents: bool,
    pub names: NamesFrom,
}

/// Where the names of a [`RelativeCopy`] come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NamesFrom {
    /// The operands: `--relative`.
    #[default]
    Operands,
    /// A list that the client has read.
    List(Arc<FileList>),
    /// The same at the server, before the client has sent it.
    Sent,
    /// A file on the source's host.
    File { path: Vec<u8>, form: ListForm },
}

/// How the names in a file end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListForm {
    /// With the line. Lines that begin with `#` or `;` are comments.
    Lines,
    /// With a NUL: `--from0`.
    Nul,
}

/// Names of files to copy, sorted, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileList {
    /// The names without slashes at their ends, in the order in which they were read.
    text: Vec<u8>,
    names: Vec<ListedName>,
    /// Paths of the directories in which names begin. The first is empty: the source itself.
    bases: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ListedName {
    start: u32,
    len: u16,
    base: u16,
    /// The entries of the directory are meant too: it has a trailing slash.
    contents: bool,
}

/// Names that begin with the same directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListRange {
    first: usize,
    end: usize,
    /// Bytes of these directories, with the slash after each.
    skip: usize,
}

/// An entry of a directory in a list.
#[derive(Debug)]
pub struct ListedChild<'a> {
    pub name: &'a [u8],
    /// The entry itself, if it is listed; for each base, in order.
    pub own: ListRange,
    /// Names below it.
    pub below: ListRange,
}

impl ListRange {
    pub fn is_empty(&self) -> bool {
        self.first >= self.end
    }

    pub fn len(&self) -> usize {
        self.end.saturating_sub(self.first)
    }

    /// Bytes of the directories with which the names begin, with the slash after each.
    pub fn skipped(&self) -> usize {
        self.skip
    }

    fn range(&self) -> Range<usize> {
        self.first..self.end
    }
}

impl ListedChild<'_> {
    /// The entry itself and the names below it.
    pub fn all(&self) -> ListRange {
        ListRange {
            first: self.own.first,
            ..self.below
        }
    }
}

impl FileList {
    /// Reads a list from a file.
    ///
    /// # Errors
    /// Usage, if it cannot be read or is too long; the message begins with `shown`.
    pub fn read(from: impl Read, form: ListForm, shown: &str) -> Result<FileList> {
        FileList::read_within(LIST_READ_MAX, from, form, shown)
    }

    /// Reads a list of at most `most` bytes.
    fn read_within(most: usize, from: impl Read, form: ListForm, shown: &str) -> Result<FileList> {
        let fail = |why: &str| Error::usage(format!("{shown}: {why}"));
        let mut builder = ListBuilder {
            read_max: most,
            ..ListBuilder::default()
        };
        let mut lines = ListLines {
            from: io::BufReader::with_capacity(64 << 10, from),
            form,
            line: Vec::new(),
            number: 0,
            ended_by: b'\n',
        };
        while let Some(read) = lines.next(most).map_err(|error| fail(&reason_of(&error)))? {
            let added = lines.check().and_then(|is_name| match is_name {
                true => builder.add(&lines.line),
                false => builder.pass(read),
            });
            added.map_err(|why| fail(&format!("line {}: {why}", lines.number)))?;
        }
        Ok(builder.finish())
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The base directories, relative to the source.
    pub fn bases(&self) -> &[Vec<u8>] {
        &self.bases
    }

    /// The names of the top directory itself (`.`), and all others.
    pub fn top(&self) -> ListedChild<'_> {
        self.child(b"", self.all(), 0, 0)
    }

    fn all(&self) -> ListRange {
        ListRange {
            first: 0,
            end: self.names.len(),
            skip: 0,
        }
    }

    /// Takes the next entry out of `rest`, the names below a directory.
    pub fn next_child(&self, rest: &mut ListRange) -> Option<ListedChild<'_>> {
        if rest.is_empty() {
            return None;
        }
        let skip = rest.skip;
        let name = self.component(rest.first, skip);
        // Most entries have one name. Others are found in steps that grow.
        let is_same = |nth: &ListedName| self.component_of(nth, skip) == name;
        let mut known = 1;
        while known < rest.len() && is_same(&self.names[rest.first + known]) {
            known = (2 * known).min(rest.len());
            if known == rest.len() {
                break;
            }
        }
        let upto = (rest.first + known).min(rest.end);
        let more = self.names[rest.first..upto].partition_point(is_same);
        let all = ListRange {
            first: rest.first,
            end: rest.first + more,
            skip,
        };
        rest.first = all.end;
        Some(self.child(name, all, skip + name.len(), skip + name.len() + 1))
    }

    /// Divides `all`, the entry with this name and the names below it.
    fn child<'a>(
        &self,
        name: &'a [u8],
        all: ListRange,
        len: usize,
        skip: usize,
    ) -> ListedChild<'a> {
        let own = self.names[all.range()].partition_point(|nth| usize::from(nth.len) == len);
        let middle = all.first + own;
        ListedChild {
            name,
            own: ListRange { end: middle, ..all },
            below: ListRange {
                first: middle,
                end: all.end,
                skip,
            },
        }
    }

    /// The entry `name` of a directory; `below` are the names below the directory.
    pub fn find<'a>(&'a self, below: &ListRange, name: &'a [u8]) -> Option<ListedChild<'a>> {
        let names = &self.names[below.range()];
        let before = |nth: &ListedName| self.component_of(nth, below.skip) < name;
        let mut rest = ListRange {
            first: below.first + names.partition_point(before),
            ..*below
        };
        let child = self.next_child(&mut rest)?;
        (child.name == name).then_some(child)
    }

    /// The bases of some names, in order.
    pub fn bases_of(&self, range: &ListRange) -> Vec<u16> {
        if self.bases.len() <= 1 {
            return match range.is_empty() {
                true => Vec::new(),
                false => vec![0],
            };
        }
        let mut bases: Vec<u16> = self.names[range.range()].iter().map(|n| n.base).collect();
        bases.sort_unstable();
        bases.dedup();
        bases
    }

    /// True if some of these names are of this base.
    pub fn has_base(&self, range: &ListRange, base: u16) -> bool {
        match self.bases.len() {
            0 | 1 => base == 0 && !range.is_empty(),
            _ => self.names[range.range()].iter().any(|n| n.base == base),
        }
    }

    /// True if some of these names have a slash at the end.
    pub fn has_contents(&self, range: &ListRange) -> bool {
        self.names[range.range()].iter().any(|name| name.contents)
    }

    /// The same for names of one base.
    pub fn has_contents_in(&self, range: &ListRange, base: u16) -> bool {
        let is_it = |name: &ListedName| name.base == base && name.contents;
        self.names[range.range()].iter().any(is_it)
    }

    /// Takes the next name out of `rest`: its base and its path.
    pub fn next_name(&self, rest: &mut ListRange) -> Option<(u16, &[u8])> {
        let name = self.names.get(rest.first).filter(|_| !rest.is_empty())?;
        rest.first += 1;
        Some((name.base, self.path(name)))
    }

    fn path(&self, name: &ListedName) -> &[u8] {
        let start = name.start as usize;
        &self.text[start..start + usize::from(name.len)]
    }

    fn component(&self, nth: usize, skip: usize) -> &[u8] {
        self.component_of(&self.names[nth], skip)
    }

    fn component_of(&self, name: &ListedName, skip: usize) -> &[u8] {
        let rest = &self.path(name)[skip..];
        rest.split(|byte| *byte == b'/').next().unwrap_or_default()
    }

    /// The list as messages carry it: lines for [`ListBuilder::add`], each with a NUL at its end, in
    /// parts of about `most` bytes. At least one part.
    pub fn parts(&self, most: usize) -> impl Iterator<Item = Vec<u8>> {
        let mut names = self.names.iter();
        let mut is_first = true;
        std::iter::from_fn(move || {
            let mut part = Vec::new();
            for name in names.by_ref() {
                let base = &self.bases[usize::from(name.base)];
                if !base.is_empty() {
                    part.extend_from_slice(base);
                    part.extend_from_slice(b"/");
                }
                part.extend_from_slice(b"./");
                part.extend_from_slice(self.path(name));
                part.extend_from_slice(if name.contents { b"/\0" } else { b"\0" });
                if part.len() >= most {
                    break;
                }
            }
            let has_part = std::mem::take(&mut is_first) || !part.is_empty();
            has_part.then_some(part)
        })
    }
}

/// The lines of a file with a list.
struct ListLines<R> {
    from: R,
    form: ListForm,
    /// At most one byte more than a path may have.
    line: Vec<u8>,
    /// The number of the line, as editors count.
    number: usize,
    /// The byte at the end of the line.
    ended_by: u8,
}

impl<R: BufRead> ListLines<R> {
    /// Reads the next line, or a little more than `most` bytes of it. Returns the number of bytes
    /// read; None at the end.
    fn next(&mut self, most: usize) -> io::Result<Option<usize>> {
        self.line.clear();
        let before = self.ended_by;
        // A file may have line ends of Windows, or of an old Mac.
        let is_end = |byte: &u8| match self.form {
            ListForm::Lines => matches!(byte, b'\n' | b'\r'),
            ListForm::Nul => *byte == 0,
        };
        let mut read = 0;
        loop {
            let there = match self.from.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                there => there?,
            };
            let end = there.iter().position(is_end);
            let part = &there[..end.unwrap_or(there.len())];
            let room = (LINE_MAX + 1).saturating_sub(self.line.len());
            self.line.extend_from_slice(&part[..part.len().min(room)]);
            let used = part.len() + usize::from(end.is_some());
            self.ended_by = end.map_or(self.ended_by, |at| there[at]);
            let is_over = end.is_some() || there.is_empty();
            self.from.consume(used);
            read += used;
            // The rest of a line that is too long is read only if it is a comment.
            if is_over || self.line.len() > LINE_MAX && !self.is_comment() || read > most {
                break;
            }
        }
        let is_rest = read == 1 && (before, self.ended_by) == (b'\r', b'\n');
        self.number += usize::from(!is_rest);
        Ok((read > 0).then_some(read))
    }

    fn is_comment(&self) -> bool {
        self.form == ListForm::Lines && matches!(self.line[..], [b'#' | b';', ..])
    }

    /// False for a comment, or an empty line.
    fn check(&self) -> std::result::Result<bool, String> {
        if self.is_comment() || self.line.is_empty() {
            return Ok(false);
        }
        if self.line.len() > LINE_MAX {
            return Err(too_long());
        }
        if self.line.contains(&0) {
            return Err("has a NUL: use -0".to_owned());
        }
        Ok(true)
    }
}

fn too_long() -> String {
    format!("a path of more than {LINE_MAX} bytes")
}

/// A [`FileList`] while it is read.
#[derive(Debug)]
pub struct ListBuilder {
    list: FileList,
    /// Bytes of the added names, and of comments and empty lines.
    read: usize,
    read_max: usize,
}

impl Default for ListBuilder {
    fn default() -> ListBuilder {
        ListBuilder {
            list: FileList {
                bases: vec![Vec::new()],
                ..FileList::default()
            },
            read: 0,
            read_max: LIST_READ_MAX,
        }
    }
}

impl ListBuilder {
    /// Adds a name as the user typed it. A slash at the start does not count, and `..` does not lead
    /// above the source. After `BASE/./`, a path below BASE follows.
    ///
    /// # Errors
    /// A sentence, if the name or the list is too long.
    pub fn add(&mut self, typed: &[u8]) -> std::result::Result<(), String> {
        self.pass(typed.len() + 1)?;
        if typed.is_empty() {
            return Ok(());
        }
        let cut = typed.windows(3).position(|bytes| bytes == b"/./");
        let (base, name) = match cut {
            Some(at) => (&typed[..at], &typed[at + 2..]),
            None => (&b""[..], typed),
        };
        let base = cleaned(base).join(&b'/');
        if base.len() > LINE_MAX {
            return Err(too_long());
        }
        let base = self.base(base)?;
        let last = name.rsplit(|byte| *byte == b'/').next();
        let has_end = matches!(last, Some(b"" | b"." | b".."));
        self.add_below(base, &cleaned(name), has_end)
    }

    /// Counts bytes that were read, also those of comments and empty names.
    ///
    /// # Errors
    /// A sentence, if there are too many.
    fn pass(&mut self, bytes: usize) -> std::result::Result<(), String> {
        self.read = self.read.saturating_add(bytes);
        match self.read > self.read_max {
            true => Err(
                "the list has more than 512 MiB, comments and empty names included: divide it, and \
                 copy in several runs"
                    .to_owned(),
            ),
            false => Ok(()),
        }
    }

    /// The number of a base directory.
    ///
    /// # Errors
    /// A sentence, if there are too many.
    pub fn base(&mut self, path: Vec<u8>) -> std::result::Result<u16, String> {
        let bases = &mut self.list.bases;
        // Names of one base usually come together.
        let known = bases.iter().rposition(|known| *known == path);
        let number = known.unwrap_or(bases.len());
        if number >= BASES_MAX {
            return Err(format!(
                "more than {BASES_MAX} different directories before /./: copy in several runs"
            ));
        }
        if known.is_none() {
            bases.push(path);
        }
        // Below `BASES_MAX`.
        Ok(number as u16)
    }

    /// Adds a name below a base directory. `contents`: with the entries of the directory.
    ///
    /// # Errors
    /// A sentence, if the name or the list is too long.
    pub fn add_below(
        &mut self,
        base: u16,
        components: &[&[u8]],
        contents: bool,
    ) -> std::result::Result<(), String> {
        let path = components.join(&b'/');
        let list = &mut self.list;
        if path.len() > LINE_MAX {
            return Err(too_long());
        }
        if list.names.len() >= LIST_NAMES_MAX {
            return Err(format!(
                "more than {LIST_NAMES_MAX} names in one list: divide the list, and copy in \
                 several runs"
            ));
        }
        if list.text.len() + path.len() > LIST_BYTES_MAX {
            return Err(
                "more than 256 MiB in one list: divide the list, and copy in several runs"
                    .to_owned(),
            );
        }
        list.names.push(ListedName {
            start: list.text.len() as u32,
            len: path.len() as u16,
            base,
            contents: contents || path.is_empty(),
        });
        list.text.extend_from_slice(&path);
        Ok(())
    }

    pub fn finish(self) -> FileList {
        let FileList {
            mut text,
            mut names,
            bases,
        } = self.list;
        text.shrink_to_fit();
        let path = |name: &ListedName| {
            let start = name.start as usize;
            &text[start..start + usize::from(name.len)]
        };
        let order = |a: &ListedName, b: &ListedName| {
            by_components(path(a), path(b)).then(a.base.cmp(&b.base))
        };
        names.sort_unstable_by(order);
        names.dedup_by(|later, first| {
            let is_same = (later.base, path(later)) == (first.base, path(first));
            first.contents |= is_same && later.contents;
            is_same
        });
        names.shrink_to_fit();
        FileList { text, names, bases }
    }
}

/// The components of a path without `.`, `..` and empty ones. `..` removes the one before it, if
/// there is one.
fn cleaned(path: &[u8]) -> Vec<&[u8]> {
    let mut components = Vec::new();
    for component in path.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => drop(components.pop()),
            name => components.push(name),
        }
    }
    components
}

/// A slash comes before all other bytes, so that a directory's entries follow it.
fn by_components(a: &[u8], b: &[u8]) -> Ordering {
    let differs = std::iter::zip(a, b).position(|(a, b)| a != b);
    match differs {
        None => a.len().cmp(&b.len()),
        Some(at) => match (a[at], b[at]) {
            (b'/', _) => Ordering::Less,
            (_, b'/') => Ordering::Greater,
            (a, b) => a.cmp(&b),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> FileList {
        FileList::read(text.as_bytes(), ListForm::Lines, "list").unwrap()
    }

    /// The walk over a list: `name` for a directory that is only passed, `name!` for one that is
    /// listed, `name/` with its contents.
    fn shown(list: &FileList, below: ListRange, out: &mut Vec<String>) {
        let mut rest = below;
        while let Some(child) = list.next_child(&mut rest) {
            let mark = match (child.own.is_empty(), list.has_contents(&child.own)) {
                (true, _) => "",
                (false, false) => "!",
                (false, true) => "/",
            };
            let name = String::from_utf8_lossy(child.name).into_owned();
            out.push(format!("{name}{mark}"));
            if !child.below.is_empty() {
                out.push("(".to_owned());
                shown(list, child.below, out);
                out.push(")".to_owned());
            }
        }
    }

    fn walked(list: &FileList) -> String {
        let top = list.top();
        let mut out = Vec::new();
        if !top.own.is_empty() {
            out.push(".".to_owned());
        }
        shown(list, top.below, &mut out);
        out.join(" ")
    }

    #[test]
    fn a_list_is_a_tree_whatever_its_order() {
        for (text, tree) in [
            ("a/b/c\na\na/x\na/b/c\n", "a! ( b ( c! ) x! )"),
            ("a-b\na/b\na\n", "a! ( b! ) a-b!"),
            ("/a/\n./b/../c\n../../d\n", "a/ c! d!"),
            ("a/./b/c\nb/c\na\n", "a! b ( c! )"),
            (".\n", "."),
            ("a/..\n", "."),
            ("a/b/..\na/\n", "a/"),
            ("# no\n; no\n\n #yes\r\nx\r\n", " #yes! x!"),
            ("a/b\na/b/\n", "a ( b/ )"),
            ("", ""),
        ] {
            assert_eq!(walked(&list(text)), tree, "{text:?}");
        }
        let nul = FileList::read(&b"#a\0b\nc\0\0d/\0"[..], ListForm::Nul, "list").unwrap();
        assert_eq!(walked(&nul), "#a! b\nc! d/");
    }

    #[test]
    fn a_large_directory_is_found_in_few_steps_and_each_name_once() {
        let text: String = (0..3000)
            .rev()
            .map(|n| format!("d/{}/f{n}\n", n % 7))
            .collect();
        let list = list(&(text.clone() + &text));
        let mut top = list.top().below;
        let d = list.next_child(&mut top).unwrap();
        assert!(top.is_empty() && d.own.is_empty() && d.below.len() == 3000);
        let three = list.find(&d.below, b"3").unwrap();
        assert_eq!(three.below.len(), (0..3000).filter(|n| n % 7 == 3).count());
        assert!(list.find(&three.below, b"f10").is_some());
        assert!(list.find(&three.below, b"f11").is_none());
    }

    #[test]
    fn a_list_survives_its_messages() {
        let list = list("x/./a/b/\nx/./a/#c\n./#d\n.\ny/./../z\na/b\n");
        for most in [1, 5, 1 << 20] {
            let mut builder = ListBuilder::default();
            for part in list.parts(most) {
                for line in part.split_inclusive(|byte| *byte == 0) {
                    builder.add(&line[..line.len() - 1]).unwrap();
                }
            }
            let copy = builder.finish();
            assert_eq!(walked(&copy), walked(&list));
            let mut bases = (copy.bases().to_vec(), list.bases().to_vec());
            bases.0.sort();
            bases.1.sort();
            assert_eq!(bases.0, bases.1);
        }
        assert_eq!(FileList::default().parts(9).count(), 1);
    }

    #[test]
    fn what_is_too_long_is_refused() {
        let long = vec![b'a'; LINE_MAX + 5];
        let error = FileList::read(&long[..], ListForm::Nul, "list").unwrap_err();
        assert!(error.message.starts_with("list: line 1: "), "{error}");
        let text = format!(
            "#{0}\r\n{1}\r{1}\r\nx\n\ny\0z\n",
            "c".repeat(9000),
            "n".repeat(LINE_MAX)
        );
        let error = FileList::read(text.as_bytes(), ListForm::Lines, "list").unwrap_err();
        assert_eq!(error.message, "list: line 6: has a NUL: use -0");
        for (endless, form) in [(0, ListForm::Nul), (b'#', ListForm::Lines)] {
            let error = FileList::read_within(1 << 20, io::repeat(endless), form, "list");
            let error = error.unwrap_err();
            assert!(error.message.contains("more than 512 MiB"), "{error}");
        }
        let base = [&vec![b'a'; LINE_MAX + 1][..], b"/./x"].concat();
        assert!(ListBuilder::default().add(&base).is_err());
        let bases: String = (0..=BASES_MAX).map(|n| format!("{n}/./x\n")).collect();
        let error = FileList::read(bases.as_bytes(), ListForm::Lines, "list").unwrap_err();
        assert!(error.message.contains("before /./"), "{error}");
    }
}
