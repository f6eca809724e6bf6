//! The notice board: the current report of the launcher, or of a restore before it, written by the one who waits and read by
//! HTTP. It logs each change once.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

use super::{Reason, Refusal, Report, State};
use crate::ticket::{VolumeMark, VolumeUid};

/// The current report, shared.
#[derive(Debug, Clone)]
pub struct Board(watch::Sender<Report>);

impl Board {
    /// A board that says this of a volume.
    pub fn new(volume: VolumeUid, Refusal { reason, message }: Refusal) -> Self {
        let report = Report { state: reason.state(), reason, message, since: now(), volume: Some(volume), mark: None };
        tracing::info!("{}: {}", report.reason, report.message);
        Self(watch::Sender::new(report))
    }

    /// What holds at this moment.
    pub fn read(&self) -> Report {
        self.0.borrow().clone()
    }

    /// Says from now on what the volume is marked with.
    pub fn tell_mark(&self, mark: Option<VolumeMark>) {
        self.0.send_modify(|report| report.mark = mark);
    }

    /// Says why etcd is not started now.
    pub fn post(&self, Refusal { reason, message }: Refusal) {
        self.0.send_if_modified(|report| {
            if report.reason == reason && report.message == message {
                return false;
            }
            let since = if report.reason == reason { report.since } else { now() };
            let (volume, mark) = (report.volume.take(), report.mark.take());
            *report = Report { state: reason.state(), reason, message, since, volume, mark };
            match report.state {
                State::Restoring if reason == Reason::Restoring => tracing::debug!("{}", report.message),
                State::Waiting => tracing::info!("{}: {}", report.reason, report.message),
                State::Refused | State::Restoring => tracing::warn!("{}: {}", report.reason, report.message),
            }
            true
        });
    }
}

/// The state before any ticket.
pub fn no_ticket(file: &Path) -> Refusal {
    Refusal::new(Reason::NoTicket, format!("waiting for the operator's ticket in {}", file.display()))
}

/// Milliseconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_changes_with_the_message_and_its_time_with_the_reason() {
        let volume: VolumeUid = "claim-uid".into();
        let board = Board::new(volume.clone(), no_ticket(Path::new("/t")));
        assert_eq!((board.read().reason, board.read().state), (Reason::NoTicket, State::Waiting));
        board.0.send_modify(|report| report.since = 5);
        board.post(Refusal::new(Reason::NoTicket, "again"));
        assert_eq!((board.read().message.as_str(), board.read().since), ("again", 5));
        board.post(Refusal::new(Reason::BadTicket, "bad"));
        board.tell_mark(Some("a1".into()));
        board.post(Refusal::new(Reason::BadTicket, "worse"));
        let report = board.read();
        assert_eq!((report.reason, report.state), (Reason::BadTicket, State::Refused));
        assert_eq!(report.mark, Some("a1".into()));
        assert!(report.since > 5);
        assert_eq!(report.volume, Some(volume));
    }
}
