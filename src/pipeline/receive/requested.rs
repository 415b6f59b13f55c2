//! The names that the user listed, as the receiver checks them: a sender may not send others.

use std::sync::Arc;

use crate::file_list::{FileList, ListRange};
use crate::manifest::Name;

/// A list that this end has read.
pub(super) struct RequestedList {
    pub list: Arc<FileList>,
    /// `-r`
    pub recursive: bool,
}

/// What may be sent of a directory.
#[derive(Clone, Copy)]
pub(super) struct RequestedNames {
    /// Any entry.
    any: bool,
    /// Any entry of the directories in it.
    deep: bool,
    /// Listed names below it.
    listed: Option<ListRange>,
}

impl RequestedList {
    pub(super) fn top(&self) -> RequestedNames {
        let top = self.list.top();
        RequestedNames {
            any: !top.own.is_empty(),
            deep: !top.own.is_empty() && self.recursive,
            listed: Some(top.below),
        }
    }

    /// What may be sent of the entry `name` of a directory. None if the entry was not requested.
    pub(super) fn child(&self, above: &RequestedNames, name: &Name) -> Option<RequestedNames> {
        let listed = above.listed.as_ref();
        let child = listed.and_then(|listed| self.list.find(listed, name.as_bytes()));
        if child.is_none() && !above.any {
            return None;
        }
        let own = child.as_ref().map(|child| child.own);
        let own = own.filter(|own| !own.is_empty());
        let deep = above.deep || own.is_some() && self.recursive;
        Some(RequestedNames {
            any: deep || own.is_some_and(|own| self.list.has_contents(&own)),
            deep,
            listed: child.map(|child| child.below),
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
            let requested = RequestedList { list, recursive };
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
