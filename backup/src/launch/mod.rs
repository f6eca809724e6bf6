//! The launcher: waits for a ticket, holds the volume against it, and becomes etcd. It never exits while it waits, and
//! never starts etcd on a volume that is not the ticket's.

mod binary;
pub(crate) mod board;
pub(crate) mod http;
pub(crate) mod inbox;
pub(crate) mod marker;
mod own_name;
mod remembered;
mod report;
pub(crate) mod ticket_file;
mod volume;
mod wait;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::ticket::{EtcdVersion, MemberName, VolumeUid};
pub use binary::VERSION_DEADLINE;
use board::Board;
use inbox::Inbox;
pub use inbox::PushSettings;
pub use report::{PATH, PORT, Reason, Report, State};

/// Whether an etcd binary has this version and takes these flags; if not, why. It starts nothing and touches no volume.
pub fn try_binary(etcd: PathBuf, version: &EtcdVersion, flags: Vec<String>) -> Result<Result<(), String>, LaunchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(LaunchError::Runtime)?;
    let tried = runtime.block_on(binary::takes(etcd, version, flags));
    Ok(tried.map_err(|Refusal { reason, message }| format!("{reason}: {message}")))
}

/// Who this pod is and where its things are.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The file that shows the pod's ticket.
    pub ticket: PathBuf,
    /// The root of the member's volume.
    pub volume: PathBuf,
    /// Where to serve the report until etcd starts.
    pub listen: SocketAddr,
    /// The etcd binary: a path, or a name to be found on `PATH`.
    pub etcd: PathBuf,
    /// A folder that lives as long as the pod: what the binary said its version is, is kept there for the next start.
    pub memory: PathBuf,
    /// The member that this pod is.
    pub identity: Identity,
    /// Whose pushed tickets are taken; nobody's if nothing.
    pub push: Option<PushSettings>,
}

/// What a ticket and a volume must name to be this pod's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The member's name.
    pub member: MemberName,
    /// The UID of the claim, or of the pod if the storage is ephemeral.
    pub volume: VolumeUid,
}

/// Why etcd is not started now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) reason: Reason,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// The launcher could not even begin to wait.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// The runtime could not be built.
    #[error("failed to start the launcher's runtime")]
    Runtime(#[source] io::Error),
    /// The handlers of SIGTERM and SIGINT could not be installed.
    #[error("failed to install the signal handlers")]
    Signals(#[source] io::Error),
}

/// Waits and becomes etcd; returns only when it is asked to stop before that.
pub fn run(settings: Settings) -> Result<ExitCode, LaunchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(LaunchError::Runtime)?;
    let code = runtime.block_on(wait_or_stop(settings));
    // A volume that doesn't answer holds its thread for ever; don't wait for it.
    runtime.shutdown_background();
    code
}

async fn wait_or_stop(settings: Settings) -> Result<ExitCode, LaunchError> {
    // The first process of a container ignores every signal that it has no handler for.
    let mut terminate = signal(SignalKind::terminate()).map_err(LaunchError::Signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(LaunchError::Signals)?;
    let board = Board::new(settings.identity.volume.clone(), board::no_ticket(&settings.ticket));
    let inbox = Inbox::new(settings.push.clone());
    let (listen, desk) = (settings.listen, http::Desk { board: board.clone(), inbox: inbox.clone() });
    let (door, opened) = oneshot::channel();
    let listener = tokio::spawn(async move {
        // Dropped, it is open as well.
        let _ = opened.await;
        http::serve(listen, desk).await;
    });
    let stopped_by = tokio::select! {
        // Signals first: one that has come must not get lost because etcd could be started at the same moment.
        biased;
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
        never = wait::until_etcd(&settings, &board, &inbox, wait::Door::new(door)) => match never {},
    };
    listener.abort();
    tracing::info!("stopped by {stopped_by}; etcd was not started");
    Ok(ExitCode::SUCCESS)
}
