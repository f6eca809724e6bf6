//! Pods, claims, tickets and the member list in the state machine's words. Only translation.

use std::collections::BTreeMap;

use kube::ResourceExt;
use quorate_crds::EtcdCluster;
use quorate_statemachine::{
    Claim, ClusterId, Home, Listed, MemberId, MemberList, Membership, Resize, Role, Seat, Serial, Sight, Start,
    TemplateHash, Ticket,
};

use super::facts::ClaimFacts;
use super::pods::{PodFacts, TicketFacts};
use super::said::{Said, Seen};
use super::serial_of;
use crate::cluster::render::{self, Begin};

/// The pods and claims, by serial.
pub(super) fn seats(
    cluster: &EtcdCluster,
    pods: &BTreeMap<Serial, PodFacts>,
    claims: &BTreeMap<Serial, ClaimFacts>,
    homes: &BTreeMap<Serial, Home>,
    said: &Said,
) -> BTreeMap<Serial, Seat> {
    let mut seats = BTreeMap::<Serial, Seat>::new();
    for (serial, facts) in pods {
        seats.entry(*serial).or_default().pod = Some(pod(facts, said.seen.get(serial), said, cluster));
    }
    if cluster.spec.storage.ephemeral {
        return seats;
    }
    for (serial, facts) in claims {
        // A volume that is gone may come back under its name: only who deletes the claim says that it won't.
        let ClaimFacts {
            uid,
            cluster_uid,
            label: _,
            terminating,
            volume_name: _,
            volume_gone: _,
            class: _,
            requested: _,
        } = facts;
        seats.entry(*serial).or_default().claim = Some(Claim {
            uid: uid.clone(),
            ours: *cluster_uid == cluster.uid(),
            terminating: *terminating,
            home: homes.get(serial).cloned().unwrap_or(Home::Anywhere),
        });
    }
    seats
}

fn pod(facts: &PodFacts, seen: Option<&Seen>, said: &Said, cluster: &EtcdCluster) -> quorate_statemachine::Pod {
    let PodFacts {
        uid,
        resource_version: _,
        owner: _,
        settings: _,
        container: _,
        created,
        node,
        ip: _,
        stage,
        leaving,
        trouble,
        volume,
        restores,
        archive: _,
        ticket,
        template,
        scheduling,
        release,
        switching,
        resources,
        resize_refused,
        resize_pending,
        label,
        ready,
    } = facts;
    let resize = match (resize_refused, resize_pending) {
        (Some(refused), _) if *refused == render::resources_hash(&cluster.spec) => Resize::Refused,
        (_, Some(_)) => Resize::NoRoom,
        (_, None) => Resize::Settled,
    };
    // A pod that no node has taken can be made anew at no cost when the spec says of its scheduling something else by now;
    // one that runs stays where it is.
    let waits_elsewhere = node.is_none() && *scheduling != Some(render::scheduling_hash(&cluster.spec));
    quorate_statemachine::Pod {
        uid: uid.clone(),
        created: *created,
        node: node.clone(),
        stage: *stage,
        terminating: leaving.leaves(),
        trouble: trouble.as_ref().map(|told| told.trouble),
        volume: volume.clone(),
        restores: *restores,
        ticket: ticket.as_ref().map(|held| self::ticket(held, said, cluster)),
        ticket_since: ticket.as_ref().map(|held| held.since).unwrap_or_default(),
        template: if waits_elsewhere { OUTDATED } else { *template },
        resources: *resources,
        resize,
        release: release.clone(),
        switching: *switching,
        label: *label,
        ready: *ready,
        sight: seen.map_or(Sight::Unknown, |seen| seen.sight.clone()),
        heard: seen.map(|seen| seen.heard).unwrap_or_default(),
    }
}

/// The hash of no template.
const OUTDATED: TemplateHash = TemplateHash(0);

/// A ticket in the state machine's words, which speak of members by id. A pod's ticket names them by serial, since an id
/// is nothing etcd is started with; a serial belongs to one id for ever, so the list that holds it translates. One that
/// is not listed (any more) becomes an id that etcd never gives out: the ticket is then seen to be out of date.
fn ticket(held: &TicketFacts, said: &Said, cluster: &EtcdCluster) -> Ticket {
    const NOT_LISTED: MemberId = MemberId(0);
    let id_of = |serial: &Serial| {
        let members = said.list.iter().flat_map(|list| &list.members);
        let mut with_serial = members.filter(|member| serial_of(cluster, member) == Some(*serial));
        with_serial.next().map_or(NOT_LISTED, |member| MemberId(member.id.0))
    };
    let start = match &held.begin {
        Begin::Seed => Start::Seed,
        Begin::Join(serials) => Start::Join(serials.iter().map(id_of).collect()),
        Begin::Resume => Start::Resume,
    };
    Ticket { start, volume: held.volume.clone(), mark: held.mark.clone(), version: held.version }
}

/// What the quorum says of its members.
pub(super) fn membership(cluster: &EtcdCluster, said: &Said) -> Membership {
    let Some(list) = &said.list else { return Membership::Unknown };
    let members = list.members.iter().map(|member| {
        let serial = serial_of(cluster, member);
        let role = if member.learner { Role::Learner } else { Role::Voter };
        (MemberId(member.id.0), Listed { serial, role, started: member.started() })
    });
    let members: BTreeMap<_, _> = members.collect();
    let leader = said.leader().map(|(_, id)| id).filter(|id| members.contains_key(id));
    Membership::Known(MemberList { cluster: ClusterId(list.cluster.0), leader, members })
}
