//! The whole way through a store: a real etcd of each version is backed up into it, by a snapshot and by a continuous record,
//! and comes back as a new cluster in which every key, version, lease, user and role is what it was, and every watch goes up.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use etcd_client::{
    Client, ConnectOptions, DeleteOptions, GetOptions, Permission, PutOptions, WatchOptions, WatchResponse, WatchStream,
};
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Server;
use super::place::Place;
use crate::archive_real::Archive;
use crate::database::leases;
use crate::real::{Binaries, Etcd, versions};
use crate::snapshot_real::write_some;

/// How long the archive may take to record what was written: it is told to store five times a second.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Each user's, in the cluster that is backed up.
const PASSWORD: &str = "not-a-secret";

/// A key with its value, as etcd has it: created, modified, version, lease.
type Entry = (Vec<u8>, [i64; 4]);

/// What a role allows: whether to read or to write, and which keys, from one on up to another.
type Allowed = (i32, Vec<u8>, Vec<u8>);

/// Who may do what.
#[derive(Debug, PartialEq)]
struct Rights {
    /// The roles of each user.
    users: BTreeMap<String, Vec<String>>,
    roles: BTreeMap<String, Vec<Allowed>>,
}

impl Rights {
    async fn of(client: &mut Client) -> Self {
        let mut users = BTreeMap::new();
        for name in client.user_list().await.unwrap().users() {
            users.insert(name.clone(), client.user_get(name).await.unwrap().roles().to_vec());
        }
        let mut roles = BTreeMap::new();
        for name in client.role_list().await.unwrap().roles() {
            let allowed = client.role_get(name).await.unwrap().permissions();
            let allowed = allowed.iter().map(|one| (one.get_type(), one.key().to_vec(), one.range_end().to_vec()));
            roles.insert(name.clone(), allowed.collect());
        }
        Self { users, roles }
    }
}

/// Makes users and roles, each kind with several, with one and with none of the other. Once: a change is a new generation.
async fn grant_rights(client: &mut Client) {
    client.role_add("reads").await.unwrap();
    client.role_grant_permission("reads", Permission::read("key/").with_prefix()).await.unwrap();
    client.role_grant_permission("reads", Permission::read("txn/1")).await.unwrap();
    client.role_add("writes").await.unwrap();
    client.role_grant_permission("writes", Permission::read_write("a").with_from_key()).await.unwrap();
    client.role_add("idle").await.unwrap();
    client.role_add("root").await.unwrap();
    let users: [(&str, &[&str]); 4] =
        [("ann", &["reads", "writes"]), ("ben", &["reads"]), ("cleo", &[]), ("root", &["root"])];
    for (user, roles) in users {
        client.user_add(user, PASSWORD, None).await.unwrap();
        for role in roles {
            client.user_grant_role(user, *role).await.unwrap();
        }
    }
}

/// All that a client can see of a cluster, and etcd's own hash of its history, which covers every earlier revision too.
#[derive(Debug, PartialEq)]
struct State {
    revision: i64,
    hash: u32,
    keys: BTreeMap<Vec<u8>, Entry>,
    /// By their ids, with the seconds for which they were granted.
    leases: BTreeMap<i64, i64>,
    rights: Rights,
}

impl State {
    async fn of(client: &mut Client) -> Self {
        let all = client.get("", Some(GetOptions::new().with_all_keys())).await.unwrap();
        let revision = all.header().unwrap().revision();
        let keys = all.kvs().iter().map(|kv| {
            let numbers = [kv.create_revision(), kv.mod_revision(), kv.version(), kv.lease()];
            (kv.key().to_vec(), (kv.value().to_vec(), numbers))
        });
        let mut leases = BTreeMap::new();
        for lease in client.leases().await.unwrap().leases() {
            let granted = client.lease_time_to_live(lease.id(), None).await.unwrap().granted_ttl();
            leases.insert(lease.id(), granted);
        }
        let hash = client.hash_kv(revision).await.unwrap().hash();
        let rights = Box::pin(Rights::of(client)).await;
        Self { revision, hash, keys: keys.collect(), leases, rights }
    }
}

/// Adds to the history: several versions of keys, deletions, transactions, a lease with keys and one without.
async fn write(client: &mut Client, round: i64) -> State {
    client.lease_grant(9_000 + round, None).await.unwrap();
    let lease = client.lease_grant(5_000 + round, None).await.unwrap().id();
    for number in 0..3 {
        let kept = PutOptions::new().with_lease(lease);
        client.put(format!("leased/{number}"), format!("{round}"), Some(kept)).await.unwrap();
    }
    client.delete("key/1", Some(DeleteOptions::new().with_prefix())).await.unwrap();
    write_some(client).await;
    State::of(client).await
}

pub async fn go(server: &dyn Server) {
    let mut ways = JoinSet::new();
    for (number, binaries) in versions().into_iter().enumerate() {
        let place = server.place(&format!("whole/way/{number}"));
        // All at once, each on a thread of its own: the agent's commands are waited for.
        ways.spawn_blocking(move || Runtime::new().unwrap().block_on(Box::pin(of_version(&place, &binaries))));
    }
    ways.join_all().await;
}

async fn of_version(place: &Place, binaries: &Binaries) {
    let etcd = Etcd::start(binaries);
    let mut client = etcd.connect().await;
    grant_rights(&mut client).await;
    let first = write(&mut client, 0).await;
    assert_eq!((first.rights.users.len(), first.rights.roles.len()), (4, 4));
    let taken = place.run("snapshot", &["--endpoint", &etcd.url(), "--lineage", "once"]).json();
    assert_eq!(taken["revision"].as_i64(), Some(first.revision), "{taken}");

    let store = place.arguments();
    let archive = Archive::into(&etcd, &store.iter().map(String::as_str).collect::<Vec<_>>());
    recorded(place, first.revision).await;
    let second = write(&mut client, 1).await;
    recorded(place, second.revision).await;
    let third = write(&mut client, 2).await;
    let whole = recorded(place, third.revision).await;
    archive.stop();
    drop(etcd);
    assert!(whole["deltas"].as_u64() >= Some(2), "{whole}");

    for (lineage, state) in [("once", &first), ("blue", &second), ("blue", &third)] {
        Box::pin(comes_back(place, binaries, lineage, state)).await;
    }
    let scratch = tempfile::tempdir().unwrap();
    let proved = place.run("verify", &["--lineage", "blue", "--strict", "--scratch", text(scratch.path())]).json();
    assert_eq!(proved["revision"].as_i64(), Some(third.revision), "{proved}");

    let (manifest, hash) = (taken["manifest"].as_str().unwrap(), taken["manifestBlake3"].as_str().unwrap());
    assert_eq!(place.run("delete", &[manifest, "--hash", hash]).json()["objects"].as_u64(), Some(2));
    assert_eq!(whole_backups(place).iter().filter(|line| line["lineage"] == "once").count(), 0);
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The backups that `list` shows.
fn whole_backups(place: &Place) -> Vec<Value> {
    let listed = place.run("list", &[]).json();
    listed.as_array().unwrap().iter().filter(|line| line["state"] == "whole").cloned().collect()
}

/// What `list` shows of the record, once it has got so far.
async fn recorded(place: &Place, revision: i64) -> Value {
    let begun = Instant::now();
    loop {
        let found = whole_backups(place).into_iter().find(|line| line["lineage"] == "blue");
        if let Some(line) = found
            && line["whole"]["lastRevision"].as_i64() >= Some(revision)
        {
            return line["whole"].clone();
        }
        assert!(begun.elapsed() < PATIENCE, "revision {revision} is not recorded");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Restores a state as a file, whose history etcd's own tool hashes, and as a cluster, which is asked for all it has.
async fn comes_back(place: &Place, binaries: &Binaries, lineage: &str, state: &State) {
    let folder = tempfile::tempdir().unwrap();
    let (database, data, tool) = (folder.path().join("db"), folder.path().join("data"), binaries.tool("etcdutl"));
    let to = state.revision.to_string();
    let restore = |more: &[&str]| {
        place.run("restore", &[&["--lineage", lineage, "--to", &to], more].concat()).json();
    };
    restore(&["--database", text(&database)]);
    assert_eq!(Binaries::hash(&database, state.revision.unsigned_abs()), u64::from(state.hash), "{lineage} at {to}");
    assert_eq!(leases(&database), state.leases);

    restore(&["--data-dir", text(&data), "--etcdutl", text(&tool)]);
    let etcd = Etcd::on(binaries, folder);
    let mut client = etcd.connect().await;
    let back = State::of(&mut client).await;
    assert!(back.revision > state.revision, "clients with a cache would not notice");
    assert!(back.keys == state.keys, "{lineage} at {to}");
    assert_eq!(back.leases, state.leases);
    assert_eq!(back.rights, state.rights);
    Box::pin(watches_go_up(&mut client, state.revision)).await;
    Box::pin(users_log_in(&etcd, client)).await;
}

/// Who goes on with a watch of the old cluster is told that its history is gone, and who begins one sees later revisions only.
async fn watches_go_up(client: &mut Client, last: i64) {
    let old = Some(WatchOptions::new().with_start_revision(last + 1));
    let mut watch = Box::pin(client.watch("key/2", old)).await.unwrap();
    assert!(next(&mut watch).await.created());
    let told = next(&mut watch).await;
    assert!(told.canceled() && told.compact_revision() > last, "{told:?}");

    let mut watch = Box::pin(client.watch("key/", Some(WatchOptions::new().with_prefix()))).await.unwrap();
    let created = next(&mut watch).await;
    let mut seen = created.header().unwrap().revision();
    assert!(created.created() && seen > last, "{created:?}");
    for value in ["x", "y", "z"] {
        let put = client.put("key/2", value, None).await.unwrap().header().unwrap().revision();
        let told = next(&mut watch).await;
        let revisions: Vec<_> = told.events().iter().map(|event| event.kv().unwrap().mod_revision()).collect();
        assert!(revisions == [put] && put > seen, "{told:?} after {seen}");
        seen = put;
    }
}

async fn next(watch: &mut WatchStream) -> WatchResponse {
    timeout(PATIENCE, watch.message()).await.expect("a watch is told nothing").unwrap().unwrap()
}

/// Each with the password that it had, where users are turned on; what it may not read is refused.
async fn users_log_in(etcd: &Etcd, mut client: Client) {
    client.auth_enable().await.unwrap();
    let log_in = async |password: &str| {
        Client::connect([etcd.url()], Some(ConnectOptions::new().with_user("ben", password))).await
    };
    let refused = log_in("a-guess").await.err().unwrap().to_string();
    assert!(refused.contains("invalid user ID or password"), "{refused}");
    let mut ben = log_in(PASSWORD).await.unwrap();
    assert_eq!(ben.get("key/2", None).await.unwrap().kvs().len(), 1);
    let refused = ben.get("leased/0", None).await.unwrap_err().to_string();
    assert!(refused.contains("permission denied"), "{refused}");
}
