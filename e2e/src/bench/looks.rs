//! When a kubelet looks at its containers: once a second, and finds then what has ended since. So a run that begins right before a
//! look is faster by a second than one that begins right after it, whoever is measured. Here each run waits for a moment between
//! two looks that is its own. It measures nothing.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;

use super::nodes::node_of;
use super::stopwatch::{moment_of, share_of};
use crate::lab::{Component, Lab};
use crate::scene::Scene;

/// What a kubelet writes when it looks, with the verbosity that the lab gives to `pkg/kubelet/pleg/generic.go`.
const LOOKS: &[u8] = b"\"GenericPLEG: Relisting\"";
/// From the end of a look to the next one (`genericPlegRelistPeriod` in `pkg/kubelet/kubelet.go`).
const PERIOD: Duration = Duration::from_secs(1);
/// How often its log is read: fine against the period.
const READ_INTERVAL: Duration = Duration::from_millis(2);
/// A kubelet that writes nothing for that long does not look.
const LIMIT: Duration = Duration::from_secs(10);

/// Waits for the moment between two looks of this pod's kubelet at which this run is to begin: those of all runs are spread
/// evenly over the second. By the clock's second they would come to moments at random, as a look begins a second after the end of
/// the one before. On another cluster than a lab nobody sees the looks, and the clock's second has to do.
pub async fn moment_between(scene: &Scene, pod: &str, run: u32) -> Result<()> {
    let Ok(lab) = Lab::from_env() else {
        moment_of(run).await;
        return Ok(());
    };
    let pod = scene.api::<Pod>().get(pod).await?;
    let node = node_of(&pod)?;
    let log = lab.log(Component::Kubelet(lab.node_named(node)?.number()));
    next(&log).await.with_context(|| format!("failed to see {node}'s kubelet look"))?;
    tokio::time::sleep(PERIOD.mul_f64(share_of(run))).await;
    Ok(())
}

async fn next(log: &Path) -> Result<()> {
    let started = Instant::now();
    let mut log = Log::at_its_end(log)?;
    while !log.tells_of_a_look()? {
        ensure!(started.elapsed() < LIMIT, "its log told of none for {} s", LIMIT.as_secs());
        tokio::time::sleep(READ_INTERVAL).await;
    }
    Ok(())
}

/// What a kubelet writes from a moment on.
struct Log {
    file: File,
    since: Vec<u8>,
}

impl Log {
    fn at_its_end(path: &Path) -> Result<Self> {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self { file, since: Vec::new() })
    }

    fn tells_of_a_look(&mut self) -> Result<bool> {
        self.file.read_to_end(&mut self.since)?;
        Ok(self.since.windows(LOOKS.len()).any(|text| text == LOOKS))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn a_look_is_told_of_once_it_is_written_and_one_of_before_is_not() {
        let mut written = tempfile::NamedTempFile::new().unwrap();
        let look = b"I1127 15:08:28.535077   25765 generic.go:298] \"GenericPLEG: Relisting\"\n";
        written.write_all(look).unwrap();
        let mut log = Log::at_its_end(written.path()).unwrap();
        assert!(!log.tells_of_a_look().unwrap());
        // Of a single pod, on demand: no look at all of them.
        written
            .write_all(b"I1127 15:08:29.1   25765 generic.go:426] \"GenericPLEG: Relisting Pod\" podUID=\"1\"\n")
            .unwrap();
        assert!(!log.tells_of_a_look().unwrap());
        let (begin, end) = look.split_at(60);
        written.write_all(begin).unwrap();
        assert!(!log.tells_of_a_look().unwrap());
        written.write_all(end).unwrap();
        assert!(log.tells_of_a_look().unwrap());
    }
}
