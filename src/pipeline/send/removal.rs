//! The sender's part in `--remove-source-files`: a thread that removes files whose copies are on disk,
//! while others are sent. The receiver is done only after it has heard of the last one.

use super::report::SendReport;
use super::scheduler::Ended;
use crate::error::Error;
use crate::source::SourceRemover;
use crate::wire::message::{DeletedEntries, Message, RemovedSources};

/// Most bytes of paths in one message, which may have 1 MiB.
const PATHS_MAX: usize = 256 << 10;

/// Removes files until all are removed, or the copy ends.
pub(super) fn run(report: &SendReport) -> Result<(), Ended> {
    use std::os::unix::ffi::OsStringExt;
    let context = report.context();
    let mut remover = SourceRemover::default();
    let fail = |error: &Error| context.report_fault(error, 0, 0);
    loop {
        let removals = report.scheduler().next_removals()?;
        let mut removed = DeletedEntries::default();
        let mut listed = 0;
        let say = |removed: DeletedEntries, is_last| {
            context.news.removed(&removed);
            let message = RemovedSources { removed, is_last };
            report.say_or_end(Message::SourcesRemoved(message))
        };
        for file in &removals.files {
            if context.is_ending() {
                break;
            }
            match remover.remove(file) {
                Ok(true) => {
                    removed.count += 1;
                    if context.options.mirror.lists {
                        let path = file.path().into_os_string().into_vec();
                        if listed > 0 && listed + path.len() > PATHS_MAX {
                            removed.count -= 1;
                            say(std::mem::take(&mut removed), false)?;
                            (removed.count, listed) = (1, 0);
                        }
                        // A longer path counts, but is not listed.
                        if path.len() <= PATHS_MAX {
                            listed += path.len();
                            removed.paths.push(path);
                        }
                    }
                }
                Ok(false) => {}
                Err(error) => fail(&error),
            }
        }
        removals.staying.iter().for_each(fail);
        let is_last = removals.are_last;
        if removed.count > 0 || is_last {
            say(removed, is_last)?;
        }
        if is_last {
            return Ok(());
        }
    }
}
