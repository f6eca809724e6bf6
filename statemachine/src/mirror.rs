//! Writes etcd's member list into the ledger: what must be known of the members when etcd can't be asked any more.
//! Plans no step.

use crate::{
    Seeding, Standing,
    census::Census,
    draft::Draft,
    spares::{self, strike_out},
};

/// Writes the member list into the ledger. A serial that was a member and is none any more is struck out, which leaves
/// its pod and claim behind as strays.
pub fn record(draft: &mut Draft<'_>, census: &Census<'_>) {
    draft.ledger.seeding = Seeding::Done(census.list.cluster);
    let standings = census.voters.iter().map(|voter| (voter, Standing::Voter(voter.id)));
    let standings = standings.chain(census.learners.iter().map(|learner| (learner, Standing::Learner(learner.id))));
    for (peer, standing) in standings {
        let member = &peer.member;
        if peer.is_stranger() {
            continue;
        }
        let entry = draft.ledger.members.entry(member.serial).or_default();
        entry.standing = standing;
        draft.remember(member);
    }
    let gone: Vec<_> = draft
        .ledger
        .members
        .iter()
        .filter(|(serial, entry)| {
            !census.lists(**serial) && (entry.create.is_some() || entry.standing != Standing::Spare)
        })
        .map(|(serial, _)| *serial)
        .collect();
    for serial in gone {
        strike_out(draft, serial);
    }
    spares::strike_out_unfit(draft);
}
