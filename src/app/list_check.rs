//! `--check=LIST`: compares files, here or on a host, with a list of digests.

use std::io::{self, Read};
use std::path::PathBuf;

use super::retries;
use crate::chunk::CHUNK_SIZE;
use crate::error::{Error, Result, reason_of};
use crate::pipe::open_option_file;
use crate::pipeline::Budget;
use crate::pipeline::list_check::ListCheck;
use crate::progress::Phase;
use crate::session::checking_end::CheckingEnd;
use crate::session::client::{Session, check_list};
use crate::session::context::ClientContext;
use crate::session::listed_lines::ListedLines;
use crate::session::request::{DigestsFrom, Request};
use crate::session::runtime::off_task;
use crate::source::{ListedPlace, Lookup};
use crate::units::printable;

/// Returns the route.
///
/// # Errors
/// Usage, if the list cannot be opened; those of a session; `Kind::Read` if the directory cannot be
/// opened.
pub async fn run(request: &Request, from: &DigestsFrom, client: &ClientContext) -> Result<String> {
    let lines = lines(request, from, client).await?;
    if request.host().is_none() {
        return here(request, client, &lines).await;
    }
    let run = async |request: &Request, client: &ClientContext, session: Session<'_>| {
        check_list(request, client, session, &lines).await
    };
    // The counts of earlier sessions stay: their answers do not come again.
    retries::repeat(request, client, run, || lines.has_progress()).await
}

async fn lines(
    request: &Request,
    from: &DigestsFrom,
    client: &ClientContext,
) -> Result<ListedLines> {
    let from_root = request.sources[0].path.iter().all(|byte| *byte == b'/');
    let from_root = from_root && !request.sources[0].path.is_empty();
    let (list, shown): (Box<dyn Read + Send>, _) = match from {
        DigestsFrom::Stdin => (Box::new(io::stdin()), "stdin".to_owned()),
        DigestsFrom::File(path) => {
            use std::os::unix::ffi::OsStrExt;
            let shown = printable(path.as_os_str().as_bytes());
            let path = path.clone();
            // The open of a FIFO waits for a writer.
            let opened = tokio::select! {
                opened = off_task(move || open_option_file(&path)) => opened?,
                () = client.shutdown.wait() => return Err(client.shutdown.error()),
            };
            let list = opened.map_err(|cause| {
                let why = reason_of(&cause);
                Error::usage(format!("{shown}: cannot open this list of digests: {why}"))
            })?;
            (Box::new(list), shown)
        }
    };
    ListedLines::read(list, shown, from_root, client)
}

/// Compares files on this machine.
async fn here(request: &Request, client: &ClientContext, lines: &ListedLines) -> Result<String> {
    let lookup = Lookup {
        base: PathBuf::new(),
        remote: false,
        confine: None,
        scp: false,
    };
    let typed = request.sources[0].path.clone();
    let place = off_task(move || ListedPlace::find(&typed, &lookup)).await??;
    let budget = Budget::new(&request.options, Some(1), CHUNK_SIZE)?;
    client.progress.set_phase(Phase::Copying);
    let (answered, told) = (lines.clone(), client.clone());
    let tell = move |files| {
        told.news
            .itemized
            .room_blocking(|| told.shutdown.cause().is_some());
        let answer = answered.answer(files, &told);
        answer.expect("each line is answered once");
    };
    let check = ListCheck::new(place, request.options.drop_cache, Box::new(tell));
    let end = CheckingEnd::start(check, budget.workers, &client.shutdown);
    let add = async {
        while let Some(group) = lines.next().await {
            end.check.room().await;
            end.check.add(group, false);
        }
        lines.done().await;
    };
    let checked = tokio::select! {
        () = add => Ok("local".to_owned()),
        () = client.shutdown.wait() => Err(client.shutdown.error()),
    };
    end.stop().await;
    checked
}
