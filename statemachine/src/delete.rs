//! Deletes a cluster: pods, then claims if they are not to be retained, then our finalizer. Always comes to its end.

use crate::{
    LookAgain, Phase, Plan, Retention, Step, Storage, World,
    draft::Draft,
    member::{Ground, Member},
};

/// Deletes what is there. Everything else (pods that are still ending, Services) is owned by the object and goes with
/// it.
pub fn tear_down(world: &World) -> Plan {
    let mut draft = Draft::new(world);
    let seats: Vec<_> = world.seats.keys().map(|serial| Member::of(world, *serial)).collect();
    for seat in &seats {
        // Also on a node that isn't ready: this only asks, and nobody is to be started in its place.
        if let Some(pod) = seat.pod.filter(|pod| !pod.terminating) {
            draft.step(Step::DeletePod { serial: seat.serial, pod: pod.uid.clone() });
        }
    }
    let claims_are_gone = match world.wish.storage {
        Storage::Claims { on_delete: Retention::Delete, .. } => delete_claims(&mut draft, &seats),
        Storage::Claims { on_delete: Retention::Retain, .. } | Storage::Ephemeral => true,
    };
    if claims_are_gone {
        draft.step(Step::ReleaseFinalizer);
    }
    draft.finish(Phase::Deleting)
}

/// Once the pods have ended, asks our claims to go; true if all have been asked before. A pod that can't end because
/// its node is away is not waited for: its claim goes when it does.
fn delete_claims(draft: &mut Draft<'_>, seats: &[Member<'_>]) -> bool {
    if seats.iter().any(|seat| seat.pod.is_some() && seat.ground() == Ground::Sound) || !draft.is_idle() {
        draft.look(LookAgain::Soon);
        return false;
    }
    for seat in seats {
        if let Some(claim) = seat.claim.filter(|claim| claim.ours && !claim.terminating) {
            draft.delete_claim(seat.serial, claim);
        }
    }
    draft.is_idle()
}
