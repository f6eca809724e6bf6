//! The notice board: the current report of the launcher, or of a restore before it, written by the one who waits and read by
//! HTTP. It logs each change once.

use std::path::Path;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;

use super::{Reason, Refusal, Report, State};
use crate::ticket::{VolumeMark, VolumeUid};

/// The current report, shared.
#[derive(Debug, Clone)]
pub struct Board(watch::Sender<Posted>);

#[derive(Debug)]
struct Posted {
    report: Report,
    /// When its reason became this one.
    at: Instant,
}

impl Board {
    /// A board that says this of a volume.
    pub fn new(volume: VolumeUid, Refusal { reason, message }: Refusal) -> Self {
        let state = reason.state();
        let report =
            Report { state, reason, message, since: now(), for_millis: None, volume: Some(volume), mark: None };
        tracing::info!("{}: {}", report.reason, report.message);
        Self(watch::Sender::new(Posted { report, at: Instant::now() }))
    }

    /// What holds at this moment.
    pub fn read(&self) -> Report {
        let posted = self.0.borrow();
        let for_millis = u64::try_from(posted.at.elapsed().as_millis()).ok();
        Report { for_millis, ..posted.report.clone() }
    }

    /// Says from now on what the volume is marked with.
    pub fn tell_mark(&self, mark: Option<VolumeMark>) {
        self.0.send_modify(|posted| posted.report.mark = mark);
    }

    /// Says why etcd is not started now.
    pub fn post(&self, Refusal { reason, message }: Refusal) {
        self.0.send_if_modified(|Posted { report, at }| {
            if report.reason == reason && report.message == message {
                return false;
            }
            if report.reason != reason {
                (report.since, *at) = (now(), Instant::now());
            }
            (report.state, report.reason, report.message) = (reason.state(), reason, message);
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_report_changes_with_the_message_and_its_time_with_the_reason() {
        let volume: VolumeUid = "claim-uid".into();
        let board = Board::new(volume.clone(), no_ticket(Path::new("/t")));
        assert_eq!((board.read().reason, board.read().state), (Reason::NoTicket, State::Waiting));
        let earlier = Instant::now().checked_sub(Duration::from_millis(5)).unwrap();
        board.0.send_modify(|posted| (posted.report.since, posted.at) = (5, earlier));
        board.post(Refusal::new(Reason::NoTicket, "again"));
        assert_eq!((board.read().message.as_str(), board.read().since), ("again", 5));
        assert!(board.read().for_millis >= Some(5));
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
