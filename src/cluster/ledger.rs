//! The ledger between its two forms: the status of an EtcdCluster and the state machine's memory. It reads and renders;
//! it writes nothing.

use std::collections::BTreeMap;

use quorate_crds::{EtcdClusterStatus, FailedRelease, HexId, LedgerMember, LedgerRelease, names};
use quorate_statemachine::{
    ClusterId, Entry, Failed, Image, Ledger, Mark, MemberId, Memory, Minor, NodeName, Release, Seeding, Serial,
    Standing, Uid, Version,
};

/// What the status of the cluster of this name says was remembered.
pub fn read(cluster: &str, status: Option<&EtcdClusterStatus>) -> Memory {
    match status.and_then(|status| status.ledger.as_ref()) {
        None => Memory::Blank,
        Some(written) => parse(cluster, written).map_or(Memory::Unreadable, Memory::Ledger),
    }
}

/// `None` where something that is there can't be read or contradicts something else, which only an edit by hand can cause.
fn parse(cluster: &str, written: &quorate_crds::Ledger) -> Option<Ledger> {
    let quorate_crds::Ledger { seeded, seed, cluster_id, next_serial, members, oldest_log, logs_cut, failed } = written;
    let seeding = match (*seeded, *seed, cluster_id) {
        (false, None, None) => Seeding::NotBegun,
        (true, Some(seed), None) => Seeding::Begun(Serial(seed)),
        (true, None, Some(id)) => Seeding::Done(ClusterId(id.get()?)),
        _ => return None,
    };
    let members: BTreeMap<_, _> = members
        .iter()
        .map(|(name, member)| Some((Serial(names::serial(cluster, name)?), parse_member(member)?)))
        .collect::<Option<_>>()?;
    let may_have_run = |entry: &Entry| entry.create.is_some() || entry.standing != Standing::Spare;
    if seeding == Seeding::NotBegun && members.values().any(may_have_run) {
        return None;
    }
    Some(Ledger {
        seeding,
        next_serial: Serial(*next_serial),
        members,
        oldest_log: oldest_log.as_ref().map_or(Some(None), |minor| Minor::parse(minor).map(Some))?,
        logs_cut: *logs_cut,
        failed: failed.as_ref().map_or(Some(None), |failed| parse_failed(failed).map(Some))?,
    })
}

fn parse_failed(failed: &FailedRelease) -> Option<Failed> {
    let FailedRelease { release, wished, serial } = failed;
    Some(Failed { release: parse_release(release)?, wished: parse_release(wished)?, serial: Serial(*serial) })
}

fn parse_release(release: &LedgerRelease) -> Option<Release> {
    let LedgerRelease { version, image } = release;
    Some(Release { version: Version::parse(version)?, image: Image::new(image) })
}

fn parse_member(member: &LedgerMember) -> Option<Entry> {
    let LedgerMember { volume, mark, node, create, id, voter, release, former } = member;
    let create = match (create, volume) {
        (false, None) => None,
        (true, Some(volume)) => Some(Uid::new(volume)),
        (true, None) | (false, Some(_)) => return None,
    };
    if create.is_none() && mark.is_some() {
        return None;
    }
    let standing = match (id, voter) {
        (None, false) => Standing::Spare,
        (Some(id), false) => Standing::Learner(MemberId(id.get()?)),
        (Some(id), true) => Standing::Voter(MemberId(id.get()?)),
        (None, true) => return None,
    };
    Some(Entry {
        create,
        mark: mark.as_deref().map(Mark::new),
        node: node.as_deref().map(NodeName::new),
        standing,
        release: release.as_ref().map_or(Some(None), |release| parse_release(release).map(Some))?,
        former: former.as_ref().map_or(Some(None), |former| parse_release(former).map(Some))?,
    })
}

/// The ledger as the status of the cluster of this name carries it.
pub fn write(cluster: &str, ledger: &Ledger) -> quorate_crds::Ledger {
    let Ledger { seeding, next_serial, members, oldest_log, logs_cut, failed } = ledger;
    let (seeded, seed, cluster_id) = match seeding {
        Seeding::NotBegun => (false, None, None),
        Seeding::Begun(Serial(seed)) => (true, Some(*seed), None),
        Seeding::Done(ClusterId(id)) => (true, None, Some(HexId::new(*id))),
    };
    let members: BTreeMap<_, _> =
        members.iter().map(|(serial, entry)| (names::member(cluster, serial.0), write_member(entry))).collect();
    quorate_crds::Ledger {
        seeded,
        seed,
        cluster_id,
        next_serial: next_serial.0,
        members,
        oldest_log: oldest_log.map(|minor| minor.to_string()),
        logs_cut: *logs_cut,
        failed: failed.as_ref().map(|Failed { release, wished, serial }| FailedRelease {
            release: write_release(release),
            wished: write_release(wished),
            serial: serial.0,
        }),
    }
}

fn write_release(release: &Release) -> LedgerRelease {
    let Release { version, image } = release;
    LedgerRelease { version: version.to_string(), image: image.as_str().to_owned() }
}

fn write_member(entry: &Entry) -> LedgerMember {
    let Entry { create, mark, node, standing, release, former } = entry;
    let (id, voter) = match standing {
        Standing::Spare => (None, false),
        Standing::Learner(MemberId(id)) => (Some(HexId::new(*id)), false),
        Standing::Voter(MemberId(id)) => (Some(HexId::new(*id)), true),
    };
    LedgerMember {
        volume: create.as_ref().map(|uid| uid.as_str().to_owned()),
        mark: mark.as_ref().map(|mark| mark.as_str().to_owned()),
        node: node.as_ref().map(|node| node.as_str().to_owned()),
        create: create.is_some(),
        id,
        voter,
        release: release.as_ref().map(write_release),
        former: former.as_ref().map(write_release),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seeding() -> impl Strategy<Value = Seeding> {
        prop_oneof![
            Just(Seeding::NotBegun),
            any::<u32>().prop_map(|s| Seeding::Begun(Serial(s))),
            any::<u64>().prop_map(|id| Seeding::Done(ClusterId(id))),
        ]
    }

    fn standing() -> impl Strategy<Value = Standing> {
        prop_oneof![
            Just(Standing::Spare),
            any::<u64>().prop_map(|id| Standing::Learner(MemberId(id))),
            any::<u64>().prop_map(|id| Standing::Voter(MemberId(id))),
        ]
    }

    fn release() -> impl Strategy<Value = Release> {
        (any::<u16>(), any::<u16>(), "[a-z./:@]{0,8}").prop_map(|(minor, patch, image)| Release {
            version: Version::new(minor, patch),
            image: Image::new(&image),
        })
    }

    fn entry() -> impl Strategy<Value = Entry> {
        use proptest::option::of;
        let volume = of(("[0-9a-f-]{1,8}", of("[0-9a-f]{1,4}")));
        (volume, of("[a-z]{1,5}"), standing(), of(release()), of(release())).prop_map(
            |(volume, node, standing, release, former)| Entry {
                create: volume.as_ref().map(|(uid, _)| Uid::new(uid)),
                mark: volume.and_then(|(_, mark)| mark).map(|mark| Mark::new(&mark)),
                node: node.map(|node| NodeName::new(&node)),
                standing,
                release,
                former,
            },
        )
    }

    fn ledger() -> impl Strategy<Value = Ledger> {
        let members = proptest::collection::btree_map(any::<u32>().prop_map(Serial), entry(), 0..6);
        let failed = (release(), release(), any::<u32>()).prop_map(|(release, wished, serial)| Failed {
            release,
            wished,
            serial: Serial(serial),
        });
        let versions = (proptest::option::of(any::<u16>()), any::<bool>(), proptest::option::of(failed));
        (seeding(), any::<u32>(), members, versions).prop_map(|(seeding, next, mut members, versions)| {
            if seeding == Seeding::NotBegun {
                for entry in members.values_mut() {
                    (entry.create, entry.mark, entry.standing) = (None, None, Standing::Spare);
                }
            }
            let (oldest_log, logs_cut, failed) = versions;
            Ledger { seeding, next_serial: Serial(next), members, oldest_log: oldest_log.map(Minor), logs_cut, failed }
        })
    }

    fn status(ledger: quorate_crds::Ledger) -> EtcdClusterStatus {
        EtcdClusterStatus { ledger: Some(ledger), ..EtcdClusterStatus::default() }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(ledger in ledger()) {
            let written = status(write("db", &ledger));
            let through_json: EtcdClusterStatus =
                serde_json::from_value(serde_json::to_value(&written).unwrap()).unwrap();
            prop_assert_eq!(read("db", Some(&through_json)), Memory::Ledger(ledger));
        }
    }

    #[test]
    fn no_ledger_is_blank_and_an_empty_one_is_a_ledger() {
        assert_eq!(read("db", None), Memory::Blank);
        assert_eq!(read("db", Some(&EtcdClusterStatus::default())), Memory::Blank);
        let empty = status(quorate_crds::Ledger::default());
        assert_eq!(read("db", Some(&empty)), Memory::Ledger(Ledger::default()));
    }

    #[test]
    fn a_ledger_that_contradicts_itself_is_unreadable() {
        let good = write(
            "db",
            &Ledger {
                seeding: Seeding::Done(ClusterId(7)),
                next_serial: Serial(1),
                members: BTreeMap::from([(
                    Serial(0),
                    Entry { create: Some(Uid::new("u")), standing: Standing::Voter(MemberId(1)), ..Entry::default() },
                )]),
                ..Ledger::default()
            },
        );
        let damages: [fn(&mut quorate_crds::Ledger); 11] = [
            |l| l.members.values_mut().for_each(|m| (m.volume, m.create, m.mark) = (None, false, Some("a1".into()))),
            |l| l.seeded = false,
            |l| (l.seeded, l.cluster_id) = (false, None),
            |l| l.seed = Some(0),
            |l| l.cluster_id = None,
            |l| l.members.values_mut().for_each(|m| m.volume = None),
            |l| l.members.values_mut().for_each(|m| m.id = None),
            |l| l.members.values_mut().for_each(|m| m.release = Some(LedgerRelease::default())),
            |l| l.oldest_log = Some("old".into()),
            |l| l.failed = Some(FailedRelease::default()),
            |l| {
                l.members.insert("other-1".into(), LedgerMember::default());
            },
        ];
        assert!(matches!(read("db", Some(&status(good.clone()))), Memory::Ledger(_)));
        for damage in damages {
            let mut bad = good.clone();
            damage(&mut bad);
            assert_eq!(read("db", Some(&status(bad.clone()))), Memory::Unreadable, "{bad:?}");
        }
    }
}
