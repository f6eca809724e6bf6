//! Words about versions: what members are told to run, what they run, what was tried.

use quorate_statemachine::{
    Alarm, Failed, Millis, Minor, NodeSight, Outcome, Overall, Release, Resize, Saved, Serial, Sight, TemplateHash,
    Trial, Trouble, Uid, Version,
};

use super::NOW;
use super::{Scene, node, release};

impl Scene {
    /// This version is wished for, in its usual image.
    pub fn wish_version(self, version: Version) -> Self {
        self.wish_release(release(version))
    }

    pub fn wish_release(mut self, release: Release) -> Self {
        self.world.wish.release = release;
        self
    }

    /// Everybody was told to run this and does, the cluster runs at its minor, and it is wished for.
    pub fn all_run(self, version: Version) -> Self {
        let serials: Vec<u32> = self.world.seats.keys().map(|serial| serial.0).collect();
        let scene = serials.into_iter().fold(self.wish_version(version), |scene, serial| scene.runs(serial, version));
        scene.runs_at(version.minor).ledger(|ledger| ledger.oldest_log = Some(version.minor))
    }

    /// It was told to run this, and does if its etcd runs.
    pub fn runs(self, serial: u32, version: Version) -> Self {
        self.told(serial, version).etcd(serial, |alive| alive.version = Some(version)).ledger(|ledger| {
            if let Some(entry) = ledger.members.get_mut(&Serial(serial)) {
                entry.former = None;
            }
        })
    }

    /// It was told to run this, from what it was told before.
    pub fn told(self, serial: u32, version: Version) -> Self {
        self.told_release(serial, release(version))
    }

    pub fn told_release(self, serial: u32, told: Release) -> Self {
        let version = told.version;
        let known = told.clone();
        let scene = self.pod(serial, |pod| {
            pod.release = Some(told);
            if let Some(ticket) = &mut pod.ticket {
                ticket.version = Some(version);
            }
        });
        scene.ledger(|ledger| {
            if let Some(entry) = ledger.members.get_mut(&Serial(serial)).filter(|entry| entry.create.is_some()) {
                entry.former = entry.release.replace(known.clone()).filter(|former| *former != known);
            }
        })
    }

    /// The container of the old image is still there.
    pub fn switching(self, serial: u32) -> Self {
        self.pod(serial, |pod| pod.switching = true)
    }

    /// The cluster runs at this minor, as every member knows.
    pub fn runs_at(mut self, minor: Minor) -> Self {
        for pod in self.world.seats.values_mut().filter_map(|seat| seat.pod.as_mut()) {
            if let Sight::Etcd(alive) = &mut pod.sight {
                alive.cluster_version = Some(minor);
            }
        }
        self
    }

    /// Every database has this version.
    pub fn stored_as(mut self, minor: Minor) -> Self {
        for pod in self.world.seats.values_mut().filter_map(|seat| seat.pod.as_mut()) {
            if let Sight::Etcd(alive) = &mut pod.sight {
                alive.storage = Some(minor);
            }
        }
        self
    }

    /// etcd was asked: no downgrade, no alarm.
    pub fn asked(self) -> Self {
        self.overall(None, None)
    }

    pub fn downgrade_to(self, minor: Minor) -> Self {
        self.overall(Some(minor), None)
    }

    pub fn alarmed(self, alarm: Alarm) -> Self {
        self.overall(None, Some(alarm))
    }

    fn overall(mut self, downgrade: Option<Minor>, alarm: Option<Alarm>) -> Self {
        self.world.overall = Overall::Known { downgrade, alarm };
        self
    }

    /// A snapshot is wanted before another minor.
    pub fn snapshot_first(mut self) -> Self {
        self.world.wish.snapshot_first = true;
        self
    }

    /// The one before this minor has come to this.
    pub fn saved(mut self, to: Minor, saved: Saved) -> Self {
        self.world.snapshots.insert(to, saved);
        self
    }

    /// A trial of this for this member has come to this.
    pub fn tried(mut self, serial: u32, of: &Release, outcome: Outcome) -> Self {
        self.world.trials.push(Trial {
            serial: Serial(serial),
            uid: Uid::new(&format!("trial-{serial}-{}", of.version)),
            release: of.clone(),
            template: self.world.wish.template,
            node: node(serial),
            created: Millis(NOW.0 - 60_000),
            terminating: false,
            outcome,
        });
        self
    }

    /// Trials of this have passed for so many members.
    pub fn all_tried(self, version: Version) -> Self {
        let serials: Vec<u32> = self.world.seats.keys().map(|serial| serial.0).collect();
        let due = serials.into_iter().filter(|serial| {
            let pod = self.world.seats.get(&Serial(*serial)).and_then(|seat| seat.pod.as_ref());
            pod.is_some_and(|pod| pod.release != Some(release(version)))
        });
        let due: Vec<u32> = due.collect();
        due.into_iter().fold(self, |scene, serial| scene.tried(serial, &release(version), Outcome::Passed))
    }

    /// Its container fails again and again.
    pub fn crashing(self, serial: u32) -> Self {
        self.unheard(serial).trouble(serial, Trouble::ContainerFailing)
    }

    /// Its container was killed from outside until the kubelet waits before it starts it again.
    pub fn killed(self, serial: u32) -> Self {
        self.unheard(serial).trouble(serial, Trouble::ContainerKilled)
    }

    pub fn has_failed(self, on: Version, serial: u32) -> Self {
        let wished = self.world.wish.release.clone();
        self.ledger(|ledger| {
            ledger.failed = Some(Failed { release: release(on), wished, serial: Serial(serial) });
        })
    }

    /// It was made with other compute resources than are wished for.
    pub fn of_other_size(self, serial: u32) -> Self {
        self.pod(serial, |pod| pod.resources = TemplateHash(0))
    }

    pub fn resize(self, serial: u32, resize: Resize) -> Self {
        self.pod(serial, |pod| pod.resize = resize)
    }

    /// Its node takes no new pods.
    pub fn cordoned(mut self, serial: u32) -> Self {
        self.world.nodes.insert(node(serial), NodeSight::Ready);
        self.world.cordoned.insert(node(serial));
        self
    }

    /// Its etcd was started just now.
    pub fn fresh(self, serial: u32) -> Self {
        self.etcd(serial, |alive| alive.process = Millis(alive.seen.0))
    }
}
