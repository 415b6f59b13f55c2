//! The names that the user asked for, as the receiver checks them: a sender may not send others.

use std::sync::Arc;

use crate::file_list::{FileList, ListRange};
use crate::manifest::Name;
use crate::source::RequestedPaths;

/// Which files of a copy that keeps paths may be sent.
pub(super) struct RequestedFiles {
    /// The list that this end has read, or the operands without patterns.
    pub list: Arc<FileList>,
    /// Operands with patterns.
    pub patterns: RequestedPaths,
    /// `-r`
    pub recursive: bool,
}

/// What may be sent of a directory.
#[derive(Clone)]
pub(super) struct RequestedNames {
    /// The entry itself was named, or is in a directory whose entries were.
    is_named: bool,
    /// Any entry.
    any: bool,
    /// Any entry of the directories in it.
    deep: bool,
    /// Listed names below it.
    listed: Option<ListRange>,
    /// For the paths with patterns that begin with this directory: the number of the path, and of
    /// its names up to here.
    begun: Box<[(u32, u32)]>,
}

impl RequestedNames {
    /// True if the user named it. Otherwise it is only a directory above a named entry.
    pub(super) fn is_named(&self) -> bool {
        self.is_named
    }
}

impl RequestedFiles {
    pub(super) fn top(&self) -> RequestedNames {
        let top = self.list.top();
        let is_own = !top.own.is_empty();
        RequestedNames {
            is_named: true,
            any: is_own,
            deep: is_own && self.recursive,
            listed: Some(top.below),
            begun: self.patterns.all(),
        }
    }

    /// For an entry of a directory that is not known.
    pub(super) fn any(&self) -> RequestedNames {
        RequestedNames {
            any: true,
            deep: true,
            ..self.top()
        }
    }

    /// What may be sent of the entry `name` of a directory. None if the entry was not requested.
    pub(super) fn child(&self, above: &RequestedNames, name: &Name) -> Option<RequestedNames> {
        let listed = above.listed.as_ref();
        let child = listed.and_then(|listed| self.list.find(listed, name.as_bytes()));
        let (begun, is_match) = self.patterns.next(&above.begun, name);
        if child.is_none() && begun.is_empty() && !is_match && !above.any {
            return None;
        }
        let own = child.as_ref().map(|child| child.own);
        let own = own.filter(|own| !own.is_empty());
        let is_own = own.is_some() || is_match;
        let deep = above.deep || is_own && self.recursive;
        Some(RequestedNames {
            is_named: is_own || above.any,
            any: deep || own.is_some_and(|own| self.list.has_contents(&own)),
            deep,
            listed: child.map(|child| child.below),
            begun,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_list::ListForm;

    #[test]
    fn only_listed_names_and_what_is_below_them_may_be_sent() {
        let text = "a/b\nc/\nd\n";
        let list = FileList::read(text.as_bytes(), ListForm::Lines, "list").unwrap();
        let may = |recursive: bool, path: &str| {
            let list = Arc::new(list.clone());
            let requested = RequestedFiles {
                list,
                patterns: RequestedPaths::default(),
                recursive,
            };
            let mut at = Some(requested.top());
            for name in path.split('/') {
                let name = Name::try_from(name.as_bytes().to_vec()).unwrap();
                at = at.and_then(|at| requested.child(&at, &name));
            }
            at.is_some()
        };
        for (path, flat, deep) in [
            ("a", true, true),
            ("a/b", true, true),
            ("a/b/x", false, true),
            ("a/x", false, false),
            ("b", false, false),
            ("c/x", true, true),
            ("c/x/y", false, true),
            ("d/x", false, true),
            ("x", false, false),
        ] {
            assert_eq!((may(false, path), may(true, path)), (flat, deep), "{path}");
        }
    }
}
