//! One serial as observed: its pod, its volume, what the ledger remembers of it. Answers questions, decides nothing.

use crate::{
    Alive, Claim, Entry, Finding, Home, Mark, Memory, Minor, NodeName, NodeSight, Pod, PodStage, Refusal, Release,
    Resize, Serial, Sight, Start, Storage, Ticket, Trouble, Uid, World,
};

/// How long something new may take to come up before it is only looked at every few seconds: an image is pulled, a
/// volume attached. What changes in Kubernetes wakes us anyway.
const SETTLING_MS: u64 = 60_000;

/// How long a new image may be under way without its ticket, which the launcher reads from a file that the kubelet brings up
/// to date in 0.1 to 0.5 s, at the latest when it next looks at the pod: until then it refuses the old one.
const TICKET_PATIENCE_MS: u64 = 10_000;

/// How long a pod's status may speak of the container before while an image is pulled for the next one: the kubelet writes
/// the status first and pulls then (`SyncPod` in `pkg/kubelet/kubelet.go`).
const PULL_PATIENCE_MS: u64 = 60_000;

/// One serial as observed.
#[derive(Clone, Copy)]
pub struct Member<'w> {
    world: &'w World,
    pub serial: Serial,
    pub entry: Option<&'w Entry>,
    pub pod: Option<&'w Pod>,
    pub claim: Option<&'w Claim>,
    /// The volume a `create` was issued for.
    pub create: Option<&'w Uid>,
    /// It has run as a member: it can only ever be resumed.
    pub started: bool,
}

/// What has become of a serial's volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Volume<'w> {
    /// No `create` was issued, and there is none.
    Absent,
    /// No `create` was issued; it is there, made for this very object.
    Blank(&'w Uid),
    /// No `create` was issued; what is there was made for another object, or is being deleted.
    Unfit,
    /// The one a `create` was issued for.
    Intact(&'w Uid),
    /// The one a `create` was issued for; it goes when its pod goes.
    Going(&'w Uid),
    /// The one a `create` was issued for is no more, for this reason.
    Lost(Finding),
}

/// What is known of the ground a pod or a volume is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// A node that is ready, or none at all.
    Sound,
    /// A node that isn't ready, or of which nothing is known: what was there may be running unseen.
    Unreachable,
    /// A node that is no more: nothing runs there, by declaration.
    Gone,
}

impl<'w> Member<'w> {
    /// What was observed of a serial that is not known to have run.
    pub fn of(world: &'w World, serial: Serial) -> Self {
        let seat = world.seats.get(&serial);
        let entry = match &world.memory {
            Memory::Blank | Memory::Unreadable => None,
            Memory::Ledger(ledger) => ledger.members.get(&serial),
        };
        Self {
            world,
            serial,
            entry,
            pod: seat.and_then(|seat| seat.pod.as_ref()),
            claim: seat.and_then(|seat| seat.claim.as_ref()),
            create: entry.and_then(|entry| entry.create.as_ref()),
            started: false,
        }
    }

    /// The same for one that has run. Should the ledger not know its volume (it was written back to an older state),
    /// it is the one that is there: the launcher resumes only on a volume that carries this member's marker.
    pub fn having_run(mut self) -> Self {
        self.started = true;
        self.create = self.create.or_else(|| match self.world.wish.storage {
            Storage::Claims { .. } => self.claim.map(|claim| &claim.uid),
            Storage::Ephemeral => self.pod.map(|pod| &pod.uid),
        });
        self
    }

    /// What has become of its volume.
    pub fn volume(&self) -> Volume<'w> {
        let Some(create) = self.create else {
            return if self.started { Volume::Lost(Finding::VolumeLost) } else { self.unspent_volume() };
        };
        let volume = match self.world.wish.storage {
            Storage::Claims { .. } => self.claimed_volume(create),
            Storage::Ephemeral => self.ephemeral_volume(create),
        };
        match (volume, self.refused_volume()) {
            (Volume::Intact(_), Some(loss)) => Volume::Lost(loss),
            (volume, _) => volume,
        }
    }

    fn unspent_volume(&self) -> Volume<'w> {
        match (self.world.wish.storage, self.claim, self.pod) {
            (Storage::Claims { .. }, Some(claim), _) if claim.ours && !claim.terminating => Volume::Blank(&claim.uid),
            (Storage::Claims { .. }, Some(_), _) => Volume::Unfit,
            (Storage::Ephemeral, _, Some(pod)) => Volume::Blank(&pod.uid),
            (Storage::Claims { .. }, None, _) | (Storage::Ephemeral, _, None) => Volume::Absent,
        }
    }

    fn claimed_volume(&self, create: &'w Uid) -> Volume<'w> {
        match self.claim.filter(|claim| claim.uid == *create) {
            Some(claim) if self.ground_of_home(claim) == Ground::Gone => Volume::Lost(Finding::NodeGone),
            Some(claim) if !claim.terminating => Volume::Intact(create),
            Some(_) if self.pod.is_some() => Volume::Going(create),
            // The claim was forced away under an etcd that still runs on it.
            None if self.alive().is_some() && self.pod.is_some_and(|pod| pod.volume == *create) => {
                Volume::Going(create)
            }
            Some(_) | None => Volume::Lost(Finding::VolumeLost),
        }
    }

    fn ephemeral_volume(&self, create: &'w Uid) -> Volume<'w> {
        match self.pod.filter(|pod| pod.uid == *create && pod.stage != PodStage::Finished) {
            Some(_) if self.ground() == Ground::Gone => Volume::Lost(Finding::NodeGone),
            Some(pod) if pod.terminating => Volume::Going(create),
            Some(_) => Volume::Intact(create),
            None => Volume::Lost(Finding::VolumeLost),
        }
    }

    /// What the launcher says against the volume's data. That there is none is a loss for one that has run, and where its
    /// mark is gone as well: a learner killed in its first milliseconds has left nothing but that, and may be created on that
    /// volume again.
    fn refused_volume(&self) -> Option<Finding> {
        let ticket = self.pod?.ticket.as_ref()?;
        match self.refusal()? {
            Refusal::VolumeLost | Refusal::NoEntry if self.started && ticket.start == Start::Resume => {
                Some(Finding::VolumeLost)
            }
            // What it was told to create on had a mark, or a backup: it may have run on it unseen.
            Refusal::VolumeLost if ticket.start != Start::Resume => Some(Finding::VolumeLost),
            Refusal::VolumeForeign if ticket.start != Start::Seed => Some(Finding::VolumeForeign),
            Refusal::VolumeLost | Refusal::NoEntry | Refusal::VolumeForeign | Refusal::Binary | Refusal::Other => None,
        }
    }

    /// What its launcher refuses, if it does.
    pub fn refusal(&self) -> Option<Refusal> {
        match self.pod?.sight {
            Sight::Refused(refusal) => Some(refusal),
            Sight::Unknown | Sight::Waiting(_) | Sight::Restoring(_) | Sight::Etcd(_) => None,
        }
    }

    /// Its etcd, if it answers and is not being stopped.
    pub fn alive(&self) -> Option<&'w Alive> {
        match self.pod.filter(|pod| !pod.terminating).map(|pod| &pod.sight)? {
            Sight::Etcd(alive) => Some(alive),
            Sight::Unknown | Sight::Waiting(_) | Sight::Restoring(_) | Sight::Refused(_) => None,
        }
    }

    /// Its etcd is alive and follows a leader.
    pub fn well(&self) -> bool {
        self.alive().is_some_and(|alive| alive.live && alive.has_leader)
    }

    /// Its launcher waits, and its pod is there to stay.
    pub fn waits(&self) -> bool {
        let waits = |pod: &Pod| matches!(pod.sight, Sight::Waiting(_));
        self.pod.is_some_and(|pod| !pod.terminating && pod.node.is_some() && waits(pod))
            && self.ground() == Ground::Sound
    }

    /// What its waiting launcher says that the volume is marked with.
    fn marked(&self) -> Option<&'w Mark> {
        match &self.pod?.sight {
            Sight::Waiting(mark) => mark.as_ref(),
            Sight::Unknown | Sight::Restoring(_) | Sight::Refused(_) | Sight::Etcd(_) => None,
        }
    }

    /// The volume on which its waiting launcher may be told to create it: none but the pod's own, and none but the one
    /// that an earlier `create` went to.
    pub fn volume_to_create_on(&self) -> Option<&'w Uid> {
        match self.volume() {
            Volume::Blank(uid) | Volume::Intact(uid) | Volume::Going(uid) => {
                self.pod.filter(|pod| pod.volume == *uid).map(|_| uid)
            }
            Volume::Absent | Volume::Unfit | Volume::Lost(_) => None,
        }
    }

    /// It is certain that no etcd of this member runs: it answers otherwise, or was never started, or its node says so.
    pub fn surely_down(&self) -> bool {
        let Some(pod) = self.pod else { return self.ground_of_last_node() != Ground::Unreachable };
        match (self.ground(), &pod.sight) {
            (_, Sight::Etcd(_)) | (Ground::Unreachable, _) => false,
            (Ground::Gone, _) | (Ground::Sound, Sight::Waiting(_) | Sight::Restoring(_) | Sight::Refused(_)) => true,
            (Ground::Sound, Sight::Unknown) => pod.stage != PodStage::Running,
        }
    }

    /// It is not well, and that is more than one look that found nothing: its pod goes, its etcd or its launcher says so
    /// itself, none can be running, or nothing was heard for so long.
    pub fn is_down_for(&self, silence: u64) -> bool {
        let Some(pod) = self.pod.filter(|pod| !pod.terminating && pod.sight == Sight::Unknown) else {
            return !self.well();
        };
        self.stays_down() || self.world.now.since(pod.heard) > silence
    }

    /// It is down, and nothing that is there can bring it back: it has no pod, or no volume to resume on.
    pub fn stays_down(&self) -> bool {
        let has_ended = self.pod.is_none_or(|pod| pod.stage == PodStage::Finished);
        let is_lost = match self.volume() {
            Volume::Lost(_) => true,
            Volume::Absent | Volume::Blank(_) | Volume::Unfit | Volume::Intact(_) | Volume::Going(_) => false,
        };
        self.surely_down() && (has_ended || is_lost)
    }

    /// Its pod, its ticket or its etcd is so new that more is to be expected of it in a moment.
    pub fn is_settling(&self) -> bool {
        let newest = self.pod.map(|pod| match &pod.sight {
            Sight::Etcd(alive) => alive.process.max(pod.created).max(pod.ticket_since),
            Sight::Unknown | Sight::Waiting(_) | Sight::Restoring(_) | Sight::Refused(_) => {
                pod.created.max(pod.ticket_since)
            }
        });
        newest.is_some_and(|newest| self.world.now.since(newest) < SETTLING_MS)
    }

    /// Its pod was made from another template than the one wished for now, or can't be given other resources in place.
    pub fn outdated(&self) -> bool {
        let template = |pod: &Pod| pod.template != self.world.wish.template;
        self.pod.is_some_and(|pod| template(pod) || (pod.resize == Resize::Refused && self.wants_resources()))
    }

    /// Its pod has other compute resources than wished.
    pub fn wants_resources(&self) -> bool {
        self.pod.is_some_and(|pod| pod.resources != self.world.wish.resources)
    }

    /// What its pod is told to run.
    pub fn told(&self) -> Option<&'w Release> {
        self.pod.and_then(|pod| pod.release.as_ref())
    }

    /// What it is told to run; without a pod that stays, what its next one will be told to.
    pub fn assigned(&self) -> Option<&'w Release> {
        let told = self.pod.filter(|pod| !pod.terminating).and_then(|pod| pod.release.as_ref());
        told.or_else(|| self.entry.and_then(|entry| entry.release.as_ref())).or_else(|| self.told())
    }

    /// The lowest minor that it may be running: until it is seen to run what it is told to, that may be what it ran before.
    pub fn lowest_minor(&self) -> Minor {
        let told = [self.assigned(), self.entry.and_then(|entry| entry.former.as_ref())].into_iter().flatten();
        let says = self.alive().and_then(|alive| alive.version);
        told.map(|release| release.version.minor).chain(says.map(|version| version.minor)).min().unwrap_or(Minor(0))
    }

    /// It is well, and runs what its pod is told to run.
    pub fn runs_as_told(&self) -> bool {
        let told = self.told().map(|release| release.version);
        let runs = self.alive().and_then(|alive| alive.version);
        self.well() && told.is_some() && told == runs && self.pod.is_some_and(|pod| !pod.switching)
    }

    /// It was seen well on what it is told to run, whatever has become of it since.
    pub fn was_well_as_told(&self) -> bool {
        let told = |entry: &Entry| entry.release.is_some() && entry.release.as_ref() == self.told();
        self.entry.is_some_and(|entry| told(entry) && entry.former.is_none())
    }

    /// A ticket for the version that its pod is told to run. To create, with the mark that was written down when the first one
    /// was issued; that is the one that its waiting launcher tells.
    pub fn ticket(&self, start: Start, volume: &Uid) -> Ticket {
        let mark = match (&start, self.entry.filter(|entry| entry.create.is_some())) {
            (Start::Seed | Start::Join(_), Some(entry)) => entry.mark.as_ref(),
            (Start::Seed | Start::Join(_), None) => self.marked(),
            (Start::Resume, _) => None,
        };
        let mark = mark.cloned();
        Ticket { start, volume: volume.clone(), mark, version: self.told().map(|release| release.version) }
    }

    /// What it is told to run can't have been started in its pod: there is no such image, or no such binary in it. Where the
    /// registry does not answer it may have run all the same, and is pulled again because of its policy.
    pub fn never_started(&self) -> bool {
        let is_new = !self.started && self.pod.is_some_and(|pod| pod.stage == PodStage::Pending);
        let is_missing = self.pod.and_then(|pod| pod.trouble) == Some(Trouble::ImageMissing);
        is_missing || (self.is_unreachable() && is_new) || self.refusal() == Some(Refusal::Binary)
    }

    /// It waits for the registry of its image, which does not answer.
    pub fn is_unreachable(&self) -> bool {
        self.pod.and_then(|pod| pod.trouble) == Some(Trouble::ImageUnreachable)
    }

    /// Its pod can't run what it is told to.
    pub fn fails_on_release(&self) -> bool {
        let Some(pod) = self.pod.filter(|pod| !pod.terminating && self.alive().is_none()) else { return false };
        let troubled = pod.trouble.is_some_and(|trouble| match trouble {
            Trouble::ImageMissing | Trouble::ImageUnreachable | Trouble::ContainerFailing => true,
            Trouble::AgentImageMissing | Trouble::Unschedulable | Trouble::ContainerKilled | Trouble::BesideFailing => {
                false
            }
        });
        let trouble = troubled && !self.shows_what_was_before(pod);
        let refuses = self.refusal() == Some(Refusal::Binary);
        trouble || (refuses && self.world.now.since(pod.ticket_since) > TICKET_PATIENCE_MS)
    }

    /// What its status says may be of what it was told to run before: the container of that is still there, or there was
    /// none, and the kubelet has hardly heard of the new image.
    fn shows_what_was_before(&self, pod: &Pod) -> bool {
        let patience = match (pod.switching, pod.stage) {
            (true, _) => PULL_PATIENCE_MS,
            (false, PodStage::Pending) => TICKET_PATIENCE_MS,
            (false, PodStage::Running | PodStage::Finished) => return false,
        };
        self.world.now.since(pod.ticket_since) <= patience
    }

    /// Its pod can't become what is needed, and runs no etcd: a new one in its place loses nothing.
    pub fn wants_new_pod(&self) -> bool {
        let Some(pod) = self.pod.filter(|_| self.alive().is_none()) else { return false };
        let (on_its_volume, outlived_by_volume) = match self.world.wish.storage {
            Storage::Claims { .. } => (self.claim.is_some_and(|claim| claim.uid == pod.volume), true),
            Storage::Ephemeral => (true, self.create.is_none()),
        };
        let hopeless = pod.stage == PodStage::Finished || self.ground() == Ground::Gone || !on_its_volume;
        let troubled = pod.trouble.is_some_and(|trouble| match trouble {
            Trouble::ImageMissing
            | Trouble::ImageUnreachable
            | Trouble::AgentImageMissing
            | Trouble::Unschedulable
            | Trouble::ContainerFailing => true,
            // It starts again at any moment; or it runs, and one look found nothing.
            Trouble::ContainerKilled | Trouble::BesideFailing => false,
        });
        let idle = self.surely_down() || troubled;
        outlived_by_volume && (hopeless || (idle && (self.outdated() || self.wants_resources())))
    }

    /// The ground its pod is on.
    pub fn ground(&self) -> Ground {
        self.ground_of(self.pod.and_then(|pod| pod.node.as_ref()))
    }

    /// The ground its next pod would find: that of its volume, and, as it may still be running there, of its last.
    pub fn ground_for_new_pod(&self) -> Ground {
        let home = self.claim.map_or(Ground::Sound, |claim| self.ground_of_home(claim));
        if self.ground_of_last_node() == Ground::Unreachable { Ground::Unreachable } else { home }
    }

    fn ground_of_last_node(&self) -> Ground {
        self.ground_of(self.entry.and_then(|entry| entry.node.as_ref()))
    }

    fn ground_of_home(&self, claim: &Claim) -> Ground {
        match &claim.home {
            Home::Anywhere => Ground::Sound,
            Home::Node(node) => self.ground_of(Some(node)),
        }
    }

    fn ground_of(&self, node: Option<&NodeName>) -> Ground {
        let Some(node) = node else { return Ground::Sound };
        match self.world.nodes.get(node) {
            Some(NodeSight::Ready) => Ground::Sound,
            Some(NodeSight::NotReady(_)) | None => Ground::Unreachable,
            Some(NodeSight::Gone) => Ground::Gone,
        }
    }
}
