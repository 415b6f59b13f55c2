//! The pages of `fastcp --help TOPIC`. Each page is a Markdown file in `src/guide`, and a module here.

macro_rules! pages {
    ($($module:ident = $topic:literal,)*) => {
        /// Topic and text of each page, in the order in which `--help` lists the topics.
        pub const PAGES: &[(&str, &str)] = &[
            $(($topic, include_str!(concat!("guide/", $topic, ".md"))),)*
        ];
        $(
            #[doc = include_str!(concat!("guide/", $topic, ".md"))]
            pub mod $module {}
        )*
    };
}

pages! {
    scp = "scp",
    rsync = "rsync",
    destination = "destination",
    archive = "archive",
    mirror = "mirror",
    dry_run = "dry-run",
    check = "check",
    choosing = "choosing",
    pipes = "pipes",
    devices = "devices",
    many_hosts = "many-hosts",
    backups = "backups",
    snapshots = "snapshots",
    database_moves = "database-moves",
    routes = "routes",
    tuning = "tuning",
    resume = "resume",
    exit_codes = "exit-codes",
    events = "events",
    install = "install",
    config = "config",
    confined_keys = "confined-keys",
    security = "security",
    changelog = "changelog",
    developing = "developing",
}

/// The page about `topic`.
pub fn page(topic: &str) -> Option<&'static str> {
    let found = PAGES.iter().find(|(name, _)| *name == topic);
    found.map(|(_, text)| *text)
}

/// The topics, separated by spaces.
pub fn topics() -> String {
    let names: Vec<_> = PAGES.iter().map(|(name, _)| *name).collect();
    names.join(" ")
}
