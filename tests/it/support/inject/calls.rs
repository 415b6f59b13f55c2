//! System calls: their names, their numbers, and the arguments that name files.

use nix::libc;

/// How a call names the files that it works on.
#[derive(Clone, Copy, Debug)]
pub(super) enum Files {
    None,
    /// Arguments that are descriptors.
    Fds(&'static [usize]),
    /// Pairs of arguments: the descriptor of a directory, and a path below it.
    At(&'static [(usize, usize)]),
    /// Arguments that are paths.
    Paths(&'static [usize]),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub name: &'static str,
    pub number: libc::c_long,
    pub files: Files,
}

const FD: Files = Files::Fds(&[0]);
const AT: Files = Files::At(&[(0, 1)]);
const AT_TWO: Files = Files::At(&[(0, 1), (2, 3)]);

macro_rules! calls {
    ($($name:literal $number:ident $files:expr),* $(,)?) => {
        &[$(Call { name: $name, number: libc::$number, files: $files }),*]
    };
}

const CALLS: &[Call] = calls! {
    "read" SYS_read FD,
    "pread64" SYS_pread64 FD,
    "readv" SYS_readv FD,
    "preadv" SYS_preadv FD,
    "write" SYS_write FD,
    "pwrite64" SYS_pwrite64 FD,
    "writev" SYS_writev FD,
    "pwritev" SYS_pwritev FD,
    "copy_file_range" SYS_copy_file_range Files::Fds(&[0, 2]),
    "sendfile" SYS_sendfile Files::Fds(&[0, 1]),
    "splice" SYS_splice Files::Fds(&[0, 2]),
    "close" SYS_close FD,
    "fsync" SYS_fsync FD,
    "fdatasync" SYS_fdatasync FD,
    "syncfs" SYS_syncfs FD,
    "sync_file_range" SYS_sync_file_range FD,
    "fadvise64" SYS_fadvise64 FD,
    "ftruncate" SYS_ftruncate FD,
    "fallocate" SYS_fallocate FD,
    "lseek" SYS_lseek FD,
    "flock" SYS_flock FD,
    "fcntl" SYS_fcntl FD,
    "ioctl" SYS_ioctl FD,
    "getdents64" SYS_getdents64 FD,
    "fstat" SYS_fstat FD,
    "newfstatat" SYS_newfstatat AT,
    "statx" SYS_statx AT,
    "fstatfs" SYS_fstatfs FD,
    "faccessat" SYS_faccessat AT,
    "faccessat2" SYS_faccessat2 AT,
    "readlinkat" SYS_readlinkat AT,
    "openat" SYS_openat AT,
    "openat2" SYS_openat2 AT,
    "renameat" SYS_renameat AT_TWO,
    "renameat2" SYS_renameat2 AT_TWO,
    "linkat" SYS_linkat AT_TWO,
    "symlinkat" SYS_symlinkat Files::At(&[(1, 2)]),
    "unlinkat" SYS_unlinkat AT,
    "mkdirat" SYS_mkdirat AT,
    "mknodat" SYS_mknodat AT,
    "fchmod" SYS_fchmod FD,
    "fchmodat" SYS_fchmodat AT,
    "fchown" SYS_fchown FD,
    "fchownat" SYS_fchownat AT,
    "utimensat" SYS_utimensat AT,
    "fsetxattr" SYS_fsetxattr FD,
    "fgetxattr" SYS_fgetxattr FD,
    "flistxattr" SYS_flistxattr FD,
    "clone" SYS_clone Files::None,
    "clone3" SYS_clone3 Files::None,
    "execve" SYS_execve Files::Paths(&[0]),
    "socket" SYS_socket Files::None,
    "connect" SYS_connect Files::None,
    "bind" SYS_bind Files::None,
    "listen" SYS_listen Files::None,
    "sendto" SYS_sendto FD,
    "recvfrom" SYS_recvfrom FD,
    "kill" SYS_kill Files::None,
    "pidfd_open" SYS_pidfd_open Files::None,
};

/// Calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
const OLD_CALLS: &[Call] = calls! {
    "open" SYS_open Files::Paths(&[0]),
    "creat" SYS_creat Files::Paths(&[0]),
    "stat" SYS_stat Files::Paths(&[0]),
    "lstat" SYS_lstat Files::Paths(&[0]),
    "access" SYS_access Files::Paths(&[0]),
    "readlink" SYS_readlink Files::Paths(&[0]),
    "rename" SYS_rename Files::Paths(&[0, 1]),
    "link" SYS_link Files::Paths(&[0, 1]),
    "unlink" SYS_unlink Files::Paths(&[0]),
    "rmdir" SYS_rmdir Files::Paths(&[0]),
    "mkdir" SYS_mkdir Files::Paths(&[0]),
    "chmod" SYS_chmod Files::Paths(&[0]),
    "fork" SYS_fork Files::None,
    "vfork" SYS_vfork Files::None,
};
#[cfg(not(target_arch = "x86_64"))]
const OLD_CALLS: &[Call] = &[];

/// A call with the value that one of its arguments must have.
pub(super) type Wanted = (Call, Option<(usize, u64)>);

/// The calls that `name` stands for: one call, or a family of equivalent calls.
pub(super) fn named(name: &str) -> Vec<Wanted> {
    let family: &[&str] = match name {
        "open" => &["openat", "openat2", "open", "creat"],
        "stat" => &["statx", "newfstatat", "fstat", "stat", "lstat"],
        "rename" => &["renameat", "renameat2", "rename"],
        "link" => &["linkat", "link"],
        "unlink" => &["unlinkat", "unlink", "rmdir"],
        "mkdir" => &["mkdirat", "mkdir"],
        "chmod" => &["fchmod", "fchmodat", "chmod"],
        "access" => &["faccessat", "faccessat2", "access"],
        "readlink" => &["readlinkat", "readlink"],
        "clone" => &["clone", "clone3", "fork", "vfork"],
        "lease" => return with_argument("fcntl", 1, libc::F_SETLEASE as u64),
        "dup" => return with_argument("fcntl", 1, libc::F_DUPFD_CLOEXEC as u64),
        "seek_data" => return with_argument("lseek", 2, libc::SEEK_DATA as u64),
        "seek_hole" => return with_argument("lseek", 2, libc::SEEK_HOLE as u64),
        // A stat by path, of a symlink itself or of its target.
        "look_at_link" => {
            return with_argument("newfstatat", 3, libc::AT_SYMLINK_NOFOLLOW as u64);
        }
        "look_through_link" => return with_argument("newfstatat", 3, 0),
        name => &[name],
    };
    let all = CALLS.iter().chain(OLD_CALLS);
    let found: Vec<_> = all
        .filter(|call| family.contains(&call.name))
        .map(|call| (*call, None))
        .collect();
    assert!(!found.is_empty(), "no such call in the table: {name}");
    found
}

fn with_argument(name: &str, index: usize, value: u64) -> Vec<Wanted> {
    let with = |(call, _): Wanted| (call, Some((index, value)));
    named(name).into_iter().map(with).collect()
}
