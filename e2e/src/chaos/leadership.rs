//! When an operator led: by the API server's audit log, which has every renewal of the Lease. What no operator was there
//! to do is no mistake of its.

use std::io;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::clock::{Clock, Moment};
use crate::faults::operator::{NAME, NAMESPACE};

/// For how long an operator may write after a renewal.
const LEADS_FOR: Duration = Duration::from_secs(10);

/// When the Lease was taken or renewed since the run began, in order.
pub fn renewals(lines: impl IntoIterator<Item = io::Result<Vec<u8>>>, clock: &Clock) -> Result<Vec<Moment>> {
    let mut renewals = vec![];
    for line in lines {
        let line = line.context("failed to read the audit log")?;
        renewals.extend(renewal(&String::from_utf8_lossy(&line), clock));
    }
    renewals.sort_unstable();
    Ok(renewals)
}

fn renewal(line: &str, clock: &Clock) -> Option<Moment> {
    // Most lines are of something else, and there are many.
    if !line.contains("leases") {
        return None;
    }
    let said: Value = serde_json::from_str(line).ok()?;
    let of = &said["objectRef"];
    let writes = said["verb"].as_str().is_some_and(|verb| ["create", "update"].contains(&verb));
    let ours = writes && of["resource"] == "leases" && of["namespace"] == NAMESPACE && of["name"] == NAME;
    let done = said["responseStatus"]["code"].as_u64().is_some_and(|code| (200..300).contains(&code));
    let time: Timestamp = said["requestReceivedTimestamp"].as_str()?.parse().ok()?;
    (ours && done).then(|| clock.at(SystemTime::from(time)))?
}

/// The longest part of this time in which no operator led.
pub fn leaderless(from: Moment, to: Moment, renewals: &[Moment]) -> Duration {
    let (mut longest, mut free) = (Duration::ZERO, from);
    for renewal in renewals.iter().filter(|renewal| **renewal <= to) {
        longest = longest.max(renewal.since(free));
        free = free.max(renewal.later_by(LEADS_FOR));
    }
    longest.max(to.since(free))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn renewals_are_found_among_all_else() {
        let clock = Clock::start();
        let later = Timestamp::from_second(Timestamp::now().as_second() + 60).unwrap();
        let line = |resource: &str, name: &str, code: u16, time: &str| {
            format!(
                r#"{{"requestReceivedTimestamp":"{time}","verb":"update","objectRef":{{"resource":"{resource}","namespace":"quorate-system","name":"{name}"}},"responseStatus":{{"code":{code}}}}}"#
            )
        };
        let later = later.to_string();
        let lines = [
            line("leases", "quorate", 200, &later),
            line("leases", "other", 200, &later),
            line("leases", "quorate", 409, &later),
            line("pods", "leases", 200, &later),
            line("leases", "quorate", 200, "2001-01-01T00:00:00Z"),
            line("leases", "quorate", 200, &later).replace("update", "get"),
            "leases, half a line".into(),
        ];
        let lines = lines.map(|line| Ok(line.into_bytes()));
        assert_eq!(renewals(lines, &clock).unwrap().len(), 1);
        assert!(renewals([Err(io::Error::other("gone"))], &clock).is_err());
    }

    #[test]
    fn nobody_leads_ten_seconds_after_the_last_renewal() {
        let at = |second: u64| Moment(second * 1_000_000);
        let seconds = |renewals: &[u64]| {
            let renewals: Vec<Moment> = renewals.iter().copied().map(at).collect();
            leaderless(at(100), at(130), &renewals).as_secs()
        };
        assert_eq!(seconds(&[]), 30);
        assert_eq!(seconds(&[95, 100, 105, 110, 115, 120, 125]), 0);
        assert_eq!(seconds(&[96, 128]), 22);
        assert_eq!(seconds(&[20, 112, 140]), 12);
    }

    proptest! {
        #[test]
        fn any_line_is_read_or_left_without_a_panic(text in ".{0,200}") {
            let clock = Clock::start();
            prop_assert_eq!(renewal(&text, &clock), None);
            let _ = renewal(&format!(r#"{{"leases":{text}}}"#), &clock);
        }
    }
}
