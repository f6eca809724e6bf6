//! The operator's process: reads the command line, starts the log and the runtime, and runs.

use std::process::ExitCode;

use clap::Parser;
use quorate::cli::{Cli, Command};
use quorate::{operator, telemetry};

/// Two threads are enough to serve ten thousand clusters, most of whose time is waiting; each costs memory.
const THREADS: usize = 2;

fn main() -> ExitCode {
    let Cli { command, settings } = Cli::parse();
    match command.unwrap_or_default() {
        Command::Run => (),
    }
    if let Err(error) = telemetry::start(&settings.log, settings.log_format) {
        eprintln!("{}", telemetry::chain(&error));
        return ExitCode::FAILURE;
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            tracing::error!(%error, "failed to start the runtime");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(operator::run(settings)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = telemetry::chain(&error), "failed to run");
            ExitCode::FAILURE
        }
    }
}
