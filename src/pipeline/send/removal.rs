//! The sender's part in `--remove-source-files`: a thread that removes files whose copies are on disk,
//! while others are sent. The receiver is done only after it has heard of the last one.

use super::report::SendReport;
use super::scheduler::Ended;
use crate::error::Error;
use crate::source::SourceRemover;
use crate::wire::message::{DeletedEntries, Message, RemovedSources};

/// Removes files until all are removed, or the copy ends.
pub(super) fn run(report: &SendReport) -> Result<(), Ended> {
    use std::os::unix::ffi::OsStrExt;
    let context = report.context();
    let mut remover = SourceRemover::default();
    let fail = |error: &Error| context.report_fault(error, 0, 0);
    loop {
        let removals = report.scheduler().next_removals()?;
        let mut removed = DeletedEntries {
            count: 0,
            paths: Vec::new(),
        };
        for file in &removals.files {
            if context.is_ending() {
                break;
            }
            match remover.remove(file) {
                Ok(true) => {
                    removed.count += 1;
                    if context.options.mirror.lists {
                        let path = file.path();
                        removed.paths.push(path.as_os_str().as_bytes().to_vec());
                    }
                }
                Ok(false) => {}
                Err(error) => fail(&error),
            }
        }
        removals.staying.iter().for_each(fail);
        context.removals.add(&removed);
        let is_last = removals.are_last;
        if removed.count > 0 || is_last {
            let message = RemovedSources { removed, is_last };
            report.say_or_end(Message::SourcesRemoved(message))?;
        }
        if is_last {
            return Ok(());
        }
    }
}
