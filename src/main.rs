//! The `fastcp` program, which runs the command line and exits with its code.

/// musl's own allocator has one lock for all threads.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    fastcp::threads::end_where_a_panic_says_so();
    // A panic exits with the code of an internal error, not with Rust's 101.
    let code = std::panic::catch_unwind(fastcp::cli::main)
        .unwrap_or_else(|_| fastcp::error::Kind::Breach.exit_code());
    std::process::exit(code);
}
