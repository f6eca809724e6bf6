//! The start ticket: everything that etcd gets on its command line, in the words of its version, and what a pod's
//! ticket lets happen. When one is issued is the plan's business; whether the volume fits is the launcher's.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
};

use quorate_backup::ticket::{DATA_FOLDER, Start, Ticket, TicketError};
use quorate_crds::{
    AutoCompaction, EtcdSettings, QuantityError,
    flags::{Flag, Missing},
    names,
};
use quorate_statemachine::{Millis, Serial, Uid, Version, max_learners};

use super::{CLIENT_PORT, Cluster, METRICS_PORT, PEER_PORT, pod::VOLUME_PATH, tls};

/// The address all listeners bind to. Go's `net.Listen` takes either wildcard for both address families where the
/// kernel has both (`favoriteAddrFamily` in `net/ipsock_posix.go`), but `[::]` fails on a kernel without IPv6.
const EVERY_ADDRESS: &str = "0.0.0.0";

/// The flags that tell as what a member begins.
const INITIAL_CLUSTER: &str = "initial-cluster";
const INITIAL_CLUSTER_STATE: &str = "initial-cluster-state";
/// The values of `--initial-cluster-state`.
const NEW: &str = "new";
const EXISTING: &str = "existing";

/// Why no ticket can be rendered. The API server refuses such a spec; an object from before a rule was there may hold one.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// The quota can't be told.
    #[error("failed to find etcd's quota: correct spec.etcd.quota or spec.storage.size")]
    Quota(#[from] QuantityError),
    /// A flag that may not be set, or a flag or feature that this version does not have.
    #[error("failed to set --{name} on etcd {version}: remove it from spec.etcd.extraFlags")]
    Flag {
        /// The flag.
        name: String,
        /// The version.
        version: String,
    },
    /// The ticket is too long for its annotation.
    #[error("failed to write the ticket: shorten spec.etcd.extraFlags")]
    Ticket(#[from] TicketError),
}

/// As what a member is to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begin {
    /// The first member of a new cluster.
    Seed,
    /// A new member of a cluster with exactly these members, itself among them.
    Join(BTreeSet<Serial>),
    /// A member that is on its volume already.
    Resume,
}

/// A ticket in the form of a pod's annotations, with the time at which it was issued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    text: String,
    since: Millis,
}

impl Sealed {
    /// Writes a ticket that is issued now.
    pub fn new(ticket: &Ticket, now: Millis) -> Result<Self, RenderError> {
        Ok(Self { text: ticket.render()?, since: now })
    }

    /// The ticket's text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The annotations: for a pod's birth, or for a patch.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        BTreeMap::from([
            (names::ANNOTATION_TICKET.to_owned(), self.text.clone()),
            (names::ANNOTATION_TICKET_SINCE.to_owned(), self.since.0.to_string()),
        ])
    }
}

/// The ticket of a member, for this volume and this version and no other, whatever it is marked with.
pub fn ticket(
    cluster: &Cluster<'_>,
    serial: Serial,
    volume: &Uid,
    version: Version,
    begin: &Begin,
) -> Result<Ticket, RenderError> {
    let mut flags = identity(cluster, serial);
    flags.extend(bootstrap(cluster, serial, begin));
    // So that a cluster of one grows to three in one go. 3.5 has no flag for it, and ends with code 2 if it is given it.
    let learners = max_learners(version.minor);
    if learners > 1 {
        flags.push(flag("max-learners", learners));
    }
    flags.extend(settings(cluster)?);
    flags.extend(extra(cluster, version)?);
    Ok(Ticket {
        start: match begin {
            Begin::Seed if cluster.spec.bootstrap.is_some() => Start::Restored,
            Begin::Seed | Begin::Join(_) => Start::Create,
            Begin::Resume => Start::Resume,
        },
        member: cluster.member(serial).into(),
        volume: volume.as_str().into(),
        mark: None,
        version: version.to_string().as_str().into(),
        flags,
    })
}

/// Who the member is and where it listens. The metrics port is always in plain text: the kubelet asks there, and it shows
/// no certificate. Nothing can be read or written through it but how the member is.
fn identity(cluster: &Cluster<'_>, serial: Serial) -> Vec<String> {
    let listen = |port: u16| format!("{}://{EVERY_ADDRESS}:{port}", cluster.scheme());
    let mut flags = vec![
        flag("name", cluster.member(serial)),
        flag("data-dir", format!("{VOLUME_PATH}/{DATA_FOLDER}")),
        flag("listen-peer-urls", listen(PEER_PORT)),
        flag("listen-client-urls", listen(CLIENT_PORT)),
        flag("listen-metrics-urls", format!("http://{EVERY_ADDRESS}:{METRICS_PORT}")),
        flag("initial-advertise-peer-urls", cluster.peer_url(serial)),
        flag("advertise-client-urls", cluster.client_url(serial)),
        // The default, said aloud: without it a change of members that costs the quorum is not refused.
        flag("strict-reconfig-check", true),
        flag("logger", "zap"),
        flag("log-outputs", "stderr"),
    ];
    flags.extend(tls::flags(&cluster.spec.tls).into_iter().map(|(name, value)| flag(name, value)));
    flags
}

/// What etcd reads once in a member's life, while its log is empty. A member that resumes gets none of it: were its log
/// empty all the same, it should fail and not begin anew. The token is the object's UID, so that no member of an earlier
/// cluster of that name is ever taken for one of this (etcd makes the cluster's id of token and URLs).
fn bootstrap(cluster: &Cluster<'_>, serial: Serial, begin: &Begin) -> Vec<String> {
    let (members, state) = match begin {
        Begin::Seed => (&BTreeSet::from([serial]), NEW),
        Begin::Join(members) => (members, EXISTING),
        Begin::Resume => return Vec::new(),
    };
    let listed = members.iter().map(|serial| format!("{}={}", cluster.member(*serial), cluster.peer_url(*serial)));
    vec![
        flag(INITIAL_CLUSTER, listed.collect::<Vec<_>>().join(",")),
        flag(INITIAL_CLUSTER_STATE, state),
        flag("initial-cluster-token", cluster.uid),
    ]
}

/// The user's settings that have a field of their own. The snapshot count is always said, because etcd's default is
/// 100,000 on 3.5 and 10,000 from 3.6 on.
fn settings(cluster: &Cluster<'_>) -> Result<Vec<String>, RenderError> {
    let settings = &cluster.spec.etcd;
    let EtcdSettings {
        quota: _,
        auto_compaction: AutoCompaction { mode, retention },
        heartbeat_interval_millis,
        election_timeout_millis,
        snapshot_count,
        extra_flags: _,
    } = settings;
    Ok(vec![
        flag("quota-backend-bytes", settings.quota_bytes(&cluster.spec.storage)?),
        flag("auto-compaction-mode", mode.as_flag()),
        flag("auto-compaction-retention", retention),
        flag("heartbeat-interval", heartbeat_interval_millis),
        flag("election-timeout", election_timeout_millis),
        flag("snapshot-count", snapshot_count),
    ])
}

/// The user's further flags, in the words of the version. They are meant for the version that is wished for: what another
/// one does not have is left out while members run that.
fn extra(cluster: &Cluster<'_>, version: Version) -> Result<Vec<String>, RenderError> {
    let wished = version.to_string() == cluster.spec.version;
    let minor = u32::from(version.minor.0);
    let spelled = |(name, value): (&String, &String)| {
        Flag::find(name).map_or_else(|| vec![Err(Missing(name.clone()))], |found| found.on(minor, value))
    };
    let told = |spelled: Result<(String, String), Missing>| match spelled {
        Ok((name, value)) => Some(Ok(flag(&name, value))),
        Err(Missing(_)) if !wished => None,
        Err(Missing(name)) => Some(Err(RenderError::Flag { name, version: version.to_string() })),
    };
    cluster.spec.etcd.extra_flags.iter().flat_map(spelled).filter_map(told).collect()
}

fn flag(name: &str, value: impl Display) -> String {
    format!("--{name}={value}")
}

impl Begin {
    /// What a ticket of this cluster lets its member start as; `None` if it is not one that [`ticket`] writes.
    pub fn of(cluster: &Cluster<'_>, ticket: &Ticket) -> Option<Self> {
        let value = |name: &str| {
            ticket.flags.iter().find_map(|flag| flag.strip_prefix("--")?.strip_prefix(name)?.strip_prefix('='))
        };
        match (ticket.start, value(INITIAL_CLUSTER_STATE)) {
            (Start::Resume, None) => Some(Self::Resume),
            (Start::Create | Start::Restored, Some(NEW)) => Some(Self::Seed),
            (Start::Create, Some(EXISTING)) => {
                let listed = value(INITIAL_CLUSTER)?.split(',');
                let serial = |line: &str| {
                    // The URL of a member of another name than the line says is another hand's.
                    let (member, url) = line.split_once('=')?;
                    let serial = Serial(names::serial(cluster.name, member)?);
                    let host = url.split_once("://")?.1;
                    (host == format!("{}:{PEER_PORT}", cluster.host(serial))).then_some(serial)
                };
                listed.map(serial).collect::<Option<_>>().map(Self::Join)
            }
            (Start::Create | Start::Restored, Some(_) | None) | (Start::Resume, Some(_)) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quorate_crds::{CompactionMode, EtcdClusterSpec, Quantity, TlsMode};

    use super::super::fixture;
    use super::*;

    const DATA_DIR: &str = "/var/lib/etcd/data";

    fn volume() -> Uid {
        Uid::new("7d1e")
    }

    fn wished(spec: &EtcdClusterSpec) -> Version {
        Version::parse(&spec.version).unwrap()
    }

    fn render(spec: &EtcdClusterSpec, begin: &Begin) -> Ticket {
        let ticket = ticket(&fixture::cluster(spec), Serial(3), &volume(), wished(spec), begin).unwrap();
        ticket.check_flags(DATA_DIR).unwrap();
        ticket
    }

    /// The flags that one change of the spec brings and takes away.
    fn effect(change: impl FnOnce(&mut EtcdClusterSpec)) -> (Vec<String>, Vec<String>) {
        let before = render(&EtcdClusterSpec::default(), &Begin::Resume).flags;
        let after = render(&fixture::spec(change), &Begin::Resume).flags;
        let only = |some: &[String], others: &[String]| some.iter().filter(|f| !others.contains(f)).cloned().collect();
        (only(&after, &before), only(&before, &after))
    }

    #[test]
    fn a_seed_begins_a_cluster_of_its_own() {
        let ticket = render(&EtcdClusterSpec::default(), &Begin::Seed);
        assert_eq!(
            ticket.flags,
            [
                "--name=db-3",
                "--data-dir=/var/lib/etcd/data",
                "--listen-peer-urls=https://0.0.0.0:2380",
                "--listen-client-urls=https://0.0.0.0:2379",
                "--listen-metrics-urls=http://0.0.0.0:2381",
                "--initial-advertise-peer-urls=https://db-3.db.prod.svc:2380",
                "--advertise-client-urls=https://db-3.db.prod.svc:2379",
                "--strict-reconfig-check=true",
                "--logger=zap",
                "--log-outputs=stderr",
                "--cert-file=/etc/etcd/tls/server.crt",
                "--key-file=/etc/etcd/tls/server.key",
                "--trusted-ca-file=/etc/etcd/tls/client-ca.crt",
                "--client-cert-auth=true",
                "--peer-cert-file=/etc/etcd/tls/peer.crt",
                "--peer-key-file=/etc/etcd/tls/peer.key",
                "--peer-trusted-ca-file=/etc/etcd/tls/peer-ca.crt",
                "--peer-client-cert-auth=true",
                "--initial-cluster=db-3=https://db-3.db.prod.svc:2380",
                "--initial-cluster-state=new",
                "--initial-cluster-token=0b54c1d2",
                "--max-learners=2",
                "--quota-backend-bytes=2147483648",
                "--auto-compaction-mode=periodic",
                "--auto-compaction-retention=1h",
                "--heartbeat-interval=100",
                "--election-timeout=1000",
                "--snapshot-count=10000",
            ]
        );
        assert_eq!(ticket.start, Start::Create);
        assert_eq!((ticket.member.as_str(), ticket.volume.as_str()), ("db-3", "7d1e"));
        assert_eq!(ticket.version.as_str(), "3.6.16");
    }

    #[test]
    fn a_joiner_is_told_of_all_members() {
        let members = BTreeSet::from([Serial(0), Serial(3)]);
        let ticket = render(&EtcdClusterSpec::default(), &Begin::Join(members));
        assert_eq!(ticket.start, Start::Create);
        let listed = "--initial-cluster=db-0=https://db-0.db.prod.svc:2380,db-3=https://db-3.db.prod.svc:2380";
        for flag in [listed, "--initial-cluster-state=existing", "--initial-cluster-token=0b54c1d2"] {
            assert!(ticket.flags.iter().any(|own| own == flag), "{flag}: {:?}", ticket.flags);
        }
    }

    #[test]
    fn in_plain_text_no_flag_speaks_of_tls() {
        let ticket = render(&fixture::spec(|s| s.tls.mode = TlsMode::Disabled), &Begin::Seed);
        assert!(!ticket.flags.iter().any(|flag| flag.contains("https") || flag.contains("cert")), "{:?}", ticket.flags);
        assert!(ticket.flags.contains(&"--initial-cluster=db-3=http://db-3.db.prod.svc:2380".to_owned()));
    }

    #[test]
    fn one_that_resumes_is_told_of_none() {
        let ticket = render(&EtcdClusterSpec::default(), &Begin::Resume);
        assert_eq!(ticket.start, Start::Resume);
        assert!(!ticket.flags.iter().any(|flag| flag.starts_with("--initial-cluster")), "{:?}", ticket.flags);
    }

    #[test]
    fn etcd_3_5_has_no_flag_for_learners_and_others_have() {
        for (version, learners) in [("3.5.35", 1), ("3.6.16", 2), ("3.7.3", 2)] {
            let ticket = render(&fixture::spec(|s| s.version = version.into()), &Begin::Seed);
            assert_eq!(ticket.version.as_str(), version);
            let minor = wished(&fixture::spec(|s| s.version = version.into())).minor;
            assert_eq!(max_learners(minor), learners);
            assert_eq!(ticket.flags.contains(&"--max-learners=2".to_owned()), learners == 2, "{version}");
        }
    }

    #[test]
    fn each_setting_becomes_its_flag() {
        type Change = fn(&mut EtcdClusterSpec);
        let changes: [(Change, &str); 7] = [
            (|s| s.etcd.quota = Some(Quantity::new("1Gi")), "--quota-backend-bytes=1073741824"),
            (|s| s.storage.size = Quantity::new("1Gi"), "--quota-backend-bytes=268435456"),
            (|s| s.etcd.auto_compaction.mode = CompactionMode::Revision, "--auto-compaction-mode=revision"),
            (|s| s.etcd.auto_compaction.retention = "0".into(), "--auto-compaction-retention=0"),
            (|s| s.etcd.heartbeat_interval_millis = 50, "--heartbeat-interval=50"),
            (|s| s.etcd.election_timeout_millis = 5000, "--election-timeout=5000"),
            (|s| s.etcd.snapshot_count = 500, "--snapshot-count=500"),
        ];
        for (change, flag) in changes {
            let (comes, goes) = effect(change);
            assert_eq!(comes, [flag]);
            let name = flag.split_once('=').unwrap().0;
            assert!(matches!(goes.as_slice(), [one] if one.starts_with(name)), "{goes:?}");
        }
    }

    #[test]
    fn further_flags_are_spelled_as_the_version_does() {
        let with = |version: &str| {
            render(
                &fixture::spec(|s| {
                    s.version = version.into();
                    s.etcd.extra_flags = [("log-level", "debug"), ("corrupt-check-time", "1h")]
                        .map(|(n, v)| (n.into(), v.into()))
                        .into();
                }),
                &Begin::Resume,
            )
            .flags
        };
        for (version, spelled) in [
            ("3.5.35", "--experimental-corrupt-check-time=1h"),
            ("3.6.16", "--corrupt-check-time=1h"),
            ("3.7.3", "--corrupt-check-time=1h"),
        ] {
            let flags = with(version);
            assert!(
                flags.contains(&spelled.to_owned()) && flags.contains(&"--log-level=debug".to_owned()),
                "{flags:?}"
            );
        }
    }

    fn extra_on(spec: &EtcdClusterSpec, version: Version) -> Vec<String> {
        extra(&fixture::cluster(spec), version).unwrap()
    }

    #[test]
    fn a_flag_for_the_wished_version_is_left_out_on_the_way_there() {
        let spec = fixture::spec(|s| s.etcd.extra_flags = [("log-format".into(), "json".into())].into());
        assert_eq!(extra_on(&spec, Version::new(6, 16)), ["--log-format=json"]);
        assert_eq!(extra_on(&spec, Version::new(7, 3)), ["--log-format=json"]);
        assert_eq!(extra_on(&spec, Version::new(5, 35)), [""; 0]);
    }

    #[test]
    fn features_are_flags_on_3_5_on_the_way_up_and_down() {
        let gates = |version: &str, gates: &str| {
            fixture::spec(|s| {
                s.version = version.into();
                s.etcd.extra_flags = [("feature-gates".into(), gates.into())].into();
            })
        };
        let paired = "InitialCorruptCheck=true, TxnModeWriteWithSharedBuffer=false";
        let on_3_5 =
            ["--experimental-initial-corrupt-check=true", "--experimental-txn-mode-write-with-shared-buffer=false"];
        for wished in ["3.5.35", "3.6.16", "3.7.3"] {
            let spec = gates(wished, paired);
            assert_eq!(extra_on(&spec, Version::new(5, 35)), on_3_5, "{wished}");
            for later in [Version::new(6, 16), Version::new(7, 3)] {
                assert_eq!(extra_on(&spec, later), [format!("--feature-gates={paired}")], "{wished}");
            }
        }
        let later = gates("3.6.16", "SetMemberLocalAddr=true,InitialCorruptCheck=true");
        assert_eq!(extra_on(&later, Version::new(5, 35)), on_3_5[..1]);
        let newest = gates("3.7.3", "InitialCorruptCheck=true,FastLeaseKeepAlive=false");
        assert_eq!(extra_on(&newest, Version::new(6, 16)), ["--feature-gates=InitialCorruptCheck=true"]);
    }

    #[test]
    fn what_the_api_server_would_have_refused_is_named() {
        type Change = fn(&mut EtcdClusterSpec);
        let faults: [(Change, &str); 5] = [
            (|s| s.etcd.quota = Some(Quantity::new("much")), "spec.etcd.quota"),
            (|s| s.etcd.extra_flags = [("wal-dir".into(), "/tmp".into())].into(), "--wal-dir on etcd 3.6.16"),
            (|s| s.etcd.extra_flags = [("cors".into(), "x".repeat(70_000))].into(), "spec.etcd.extraFlags"),
            (
                |s| {
                    s.version = "3.5.35".into();
                    s.etcd.extra_flags = [("log-format".into(), "json".into())].into();
                },
                "--log-format on etcd 3.5.35",
            ),
            (
                |s| {
                    s.version = "3.5.35".into();
                    s.etcd.extra_flags = [("feature-gates".into(), "LeaseCheckpoint=true,AllAlpha=true".into())].into();
                },
                "--feature-gates=AllAlpha=true on etcd 3.5.35: remove it from spec.etcd.extraFlags",
            ),
        ];
        for (fault, named) in faults {
            let spec = fixture::spec(fault);
            let error = ticket(&fixture::cluster(&spec), Serial(3), &volume(), wished(&spec), &Begin::Resume)
                .and_then(|ticket| Sealed::new(&ticket, Millis(0)))
                .unwrap_err();
            assert!(error.to_string().contains(named), "{error}");
        }
    }

    #[test]
    fn a_sealed_ticket_is_two_annotations() {
        let ticket = render(&EtcdClusterSpec::default(), &Begin::Seed);
        let annotations = Sealed::new(&ticket, Millis(1_700_000_000_123)).unwrap().annotations();
        assert_eq!(Ticket::parse(&annotations["quorate.dev/ticket"]).unwrap(), ticket);
        assert_eq!(annotations["quorate.dev/ticket-since"], "1700000000123");
        assert_eq!(annotations.len(), 2);
        assert_eq!(names::ANNOTATION_TICKET, quorate_backup::ticket::ANNOTATION);
    }

    #[test]
    fn a_ticket_of_another_hand_begins_nothing() {
        let spec = EtcdClusterSpec::default();
        let good = render(&spec, &Begin::Join(BTreeSet::from([Serial(0), Serial(3)])));
        let changed = |change: fn(&mut Ticket)| {
            let mut ticket = good.clone();
            change(&mut ticket);
            Begin::of(&fixture::cluster(&spec), &ticket)
        };
        assert!(changed(|_| ()).is_some());
        assert_eq!(changed(|ticket| ticket.start = Start::Resume), None);
        assert_eq!(changed(|ticket| ticket.flags.clear()), None);
        assert_eq!(changed(|ticket| ticket.flags.retain(|flag| !flag.starts_with("--initial-cluster="))), None);
        assert_eq!(changed(|ticket| ticket.flags.iter_mut().for_each(|f| *f = f.replace("prod", "test"))), None);
    }

    proptest! {
        #[test]
        fn a_ticket_says_what_it_was_written_for(
            begin in prop_oneof![
                Just(Begin::Seed),
                Just(Begin::Resume),
                prop::collection::btree_set(any::<u32>().prop_map(Serial), 1..8).prop_map(Begin::Join),
            ],
            version in prop::sample::select(vec!["3.5.35", "3.6.16", "3.7.3"]),
        ) {
            let spec = fixture::spec(|s| s.version = version.into());
            let text = render(&spec, &begin).render().unwrap();
            prop_assert_eq!(Begin::of(&fixture::cluster(&spec), &Ticket::parse(&text).unwrap()), Some(begin));
        }
    }
}
