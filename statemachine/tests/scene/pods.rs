//! Words about pods: what happens to them, and what answers in them.

use quorate_statemachine::{
    Alive, Link, Millis, Pod, PodStage, Refusal, Restore, Serial, Sight, Start, TemplateHash, Ticket, Trouble,
};

use super::{NOW, Scene, id};

impl Scene {
    /// Changes a pod, if there is one.
    pub fn pod(mut self, serial: u32, change: impl FnOnce(&mut Pod)) -> Self {
        if let Some(pod) = self.world.seats.get_mut(&Serial(serial)).and_then(|seat| seat.pod.as_mut()) {
            change(pod);
        }
        self
    }

    pub fn sees(self, serial: u32, sight: Sight) -> Self {
        self.pod(serial, |pod| pod.sight = sight)
    }

    /// Its etcd answers, changed like this.
    pub fn etcd(self, serial: u32, change: impl FnOnce(&mut Alive)) -> Self {
        self.pod(serial, |pod| {
            if let Sight::Etcd(alive) = &mut pod.sight {
                change(alive);
            }
        })
    }

    /// Neither of two members counts the other as connected.
    pub fn disconnected(self, one: u32, other: u32) -> Self {
        self.uncounted(one, other).uncounted(other, one)
    }

    /// One member does not count another one as connected.
    pub fn uncounted(self, one: u32, other: u32) -> Self {
        self.etcd(one, |alive| {
            alive.links.remove(&id(other));
        })
    }

    /// One member does not count another one, to which it sends all the same.
    pub fn overlooked(self, one: u32, other: u32) -> Self {
        self.etcd(one, |alive| {
            alive.links.insert(id(other), Link::Overlooked);
        })
    }

    pub fn unheard(self, serial: u32) -> Self {
        self.sees(serial, Sight::Unknown)
    }

    pub fn unheard_for(self, serial: u32, time: u64) -> Self {
        self.unheard(serial).pod(serial, |pod| pod.heard = Millis(NOW.0 - time))
    }

    pub fn waiting(self, serial: u32) -> Self {
        self.sees(serial, Sight::Waiting(None))
    }

    /// Its pod restores the backup, and is at it.
    pub fn restoring(self, serial: u32, restore: Restore) -> Self {
        self.restored(serial).sees(serial, Sight::Restoring(restore)).pod(serial, |pod| pod.stage = PodStage::Pending)
    }

    /// Its pod has restored the backup; the launcher waits.
    pub fn restored(self, serial: u32) -> Self {
        self.pod(serial, |pod| pod.restores = true)
    }

    pub fn refused(self, serial: u32, refusal: Refusal) -> Self {
        self.sees(serial, Sight::Refused(refusal))
    }

    /// Its pod is gone, and its process.
    pub fn pod_gone(self, serial: u32) -> Self {
        (0..7).fold(self.force_deleted(serial), |scene, other| scene.uncounted(other, serial))
    }

    /// Its pod is gone, and its process goes on.
    pub fn force_deleted(mut self, serial: u32) -> Self {
        if let Some(seat) = self.world.seats.get_mut(&Serial(serial)) {
            seat.pod = None;
        }
        self
    }

    pub fn pod_terminating(self, serial: u32) -> Self {
        self.pod(serial, |pod| pod.terminating = true)
    }

    pub fn pod_finished(self, serial: u32) -> Self {
        self.unheard(serial).pod(serial, |pod| pod.stage = PodStage::Finished)
    }

    /// Made this long ago, and still on its way.
    pub fn pod_pending(self, serial: u32, age: u64) -> Self {
        self.unheard(serial).pod(serial, |pod| {
            pod.stage = PodStage::Pending;
            pod.created = Millis(NOW.0 - age);
        })
    }

    pub fn unschedulable(self, serial: u32) -> Self {
        self.pod_pending(serial, 1_000).trouble(serial, Trouble::Unschedulable).pod(serial, |pod| pod.node = None)
    }

    pub fn trouble(self, serial: u32, trouble: Trouble) -> Self {
        self.pod(serial, |pod| pod.trouble = Some(trouble))
    }

    pub fn outdated(self, serial: u32) -> Self {
        self.pod(serial, |pod| pod.template = TemplateHash(0))
    }

    pub fn ticket(self, serial: u32, start: Start) -> Self {
        let volume = self.volume(serial);
        self.pod(serial, |pod| {
            let version = pod.release.as_ref().map(|release| release.version);
            pod.ticket = Some(Ticket { start, volume, mark: None, version });
        })
    }

    /// It got its ticket this long ago.
    pub fn ticket_age(self, serial: u32, age: u64) -> Self {
        self.pod(serial, |pod| pod.ticket_since = Millis(NOW.0 - age))
    }
}
