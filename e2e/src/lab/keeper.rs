//! Starts again what has ended of the control plane, as a kubelet does for one: kube-scheduler ends itself when it finds
//! its cache contradicted, which an API server that was paused can bring about (kubernetes/pkg/scheduler/backend/cache,
//! "Scheduler cache is corrupted"). Leaves alone what was ended on purpose, and nodes.

use std::time::{Duration, Instant};

use super::Lab;
use super::daemon::Daemon;

/// How often it looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// The pause before the second start in a row; it doubles from there. The first one comes at once.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest pause: a program that can't run costs two starts a minute.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Who has run for so long is well again.
const WELL_AFTER: Duration = Duration::from_mins(5);

/// When one program may be started again.
#[derive(Debug, Default)]
struct Starts {
    last: Option<(Instant, Duration)>,
}

impl Starts {
    fn is_due(&self, now: Instant) -> bool {
        self.last.is_none_or(|(at, pause)| now >= at + pause)
    }

    fn started(&mut self, now: Instant) {
        let again = self.last.filter(|(at, _)| now < *at + WELL_AFTER);
        let pause = again.map_or(FIRST_PAUSE, |(_, pause)| (pause * 2).min(LONGEST_PAUSE));
        self.last = Some((now, pause));
    }
}

impl Lab {
    /// Looks after the control plane until the process is killed.
    pub async fn keep(&self) -> ! {
        let plane = self.control_plane();
        let daemons = [
            plane.etcd(),
            plane.api_server(),
            plane.controller_manager(),
            plane.scheduler(),
            plane.dns(),
            plane.proxy(),
            plane.provisioner(),
        ];
        let mut kept = daemons.map(|daemon| (daemon, Starts::default()));
        loop {
            for (daemon, starts) in &mut kept {
                self.look_after(daemon, starts).await;
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    async fn look_after(&self, daemon: &Daemon, starts: &mut Starts) {
        let now = Instant::now();
        if !self.daemons.has_ended(daemon.component) || !starts.is_due(now) {
            return;
        }
        starts.started(now);
        match self.daemons.revive(daemon).await {
            Ok(true) => tracing::info!(part = %daemon.component, "had ended and was started again"),
            Ok(false) => (),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(part = %daemon.component, error, "failed to start it again");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_ends_again_and_again_is_started_less_and_less_often() {
        let (begin, mut starts) = (Instant::now(), Starts::default());
        assert!(starts.is_due(begin));
        let (mut now, mut pauses) = (begin, Vec::new());
        for _ in 0..8 {
            starts.started(now);
            let pause = (0..60).map(Duration::from_secs).find(|pause| starts.is_due(now + *pause)).unwrap();
            pauses.push(pause.as_secs());
            now += pause;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30, 30]);
    }

    #[test]
    fn who_has_run_for_long_is_started_at_once() {
        let (begin, mut starts) = (Instant::now(), Starts::default());
        for second in [0, 1, 3] {
            starts.started(begin + Duration::from_secs(second));
        }
        let later = begin + Duration::from_secs(3) + WELL_AFTER;
        assert!(starts.is_due(later));
        starts.started(later);
        assert!(starts.is_due(later + FIRST_PAUSE));
    }
}
