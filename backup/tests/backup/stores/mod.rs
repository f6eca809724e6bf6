//! Every kind of store that backups can be kept in, as a server on this machine, and what all of them are tried on alike: S3
//! is versitygw, Azure is azurite, a volume is a folder. Google's is a double in this process, since there is no server to be
//! had that takes what the library sends; the same is tried on a bucket of Google's own where one is named.

mod ambient;
mod azure;
mod care;
mod certificates;
mod checks;
mod flaws;
mod google;
mod instance;
mod late;
mod locks;
pub mod place;
mod pod_token;
mod refused;
pub mod s3;
mod slow;
mod tls;
mod troubled;
mod troubles;
mod volume;
mod web_identity;
mod whole_way;
mod wire;
mod workload_identity;

use std::iter::once_with;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use azure::Azurite;
use google::{Bucket, Double, Trouble};
use place::Place;
use s3::VersityGw;
use troubled::Troubled;
use troubles::Troubling;
use volume::Volume;

use crate::programs::{built, serves, without};

/// Set to `required` where the servers' programs must be there.
const DEMAND: &str = "QUORATE_REAL_STORES";

/// What can be wrong with how a store is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    /// The right name with another's key.
    WrongKey,
    /// A name that the store doesn't know.
    WrongAccount,
    /// No such bucket or container.
    NoBucket,
    /// Credentials that may read and list, and nothing else.
    ReadOnly,
}

/// A store that runs until it is dropped.
trait Server {
    /// The place with this prefix in it.
    fn place(&self, prefix: &str) -> Place;

    /// The same place, reached with a flaw. `None` if this kind of store can't have it.
    fn flawed(&self, prefix: &str, flaw: Flaw) -> Option<Place>;

    /// How many parts of uploads that came to nothing it still keeps. `None` if it doesn't tell.
    fn parts_left(&self) -> Option<usize>;
}

/// A server's process, ended when it is dropped.
struct Process(Child);

impl Process {
    /// Starts it, and waits until it answers.
    fn start(command: &mut Command, address: SocketAddr) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut process = Self(child);
        serves(&mut process.0, address);
        process
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Of one that has ended this is an error that says so.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program that a variable names, or else that of the tool.
fn program(tool: &str, name: &str, variable: &str) -> Option<PathBuf> {
    let found = match std::env::var_os(variable) {
        Some(path) => Some(PathBuf::from(path)),
        None => built(&format!("{tool}-"), name).pop().map(|folder| folder.join(name)),
    };
    match &found {
        Some(path) => assert!(path.is_file(), "there is no {}", path.display()),
        None => without(name, variable, DEMAND),
    }
    found
}

#[tokio::test]
async fn a_volume_does_what_a_store_has_to() {
    checks::all(&Volume::new()).await;
}

#[tokio::test]
async fn s3_does_what_a_store_has_to_and_says_what_is_wrong() {
    if let Some(server) = VersityGw::start() {
        checks::all(&server).await;
        flaws::all(&server).await;
    }
}

#[tokio::test]
async fn s3_that_knows_a_bucket_by_its_host_does_what_a_store_has_to_and_says_what_is_wrong() {
    if let Some(server) = VersityGw::with_virtual_hosts() {
        checks::all(&server).await;
        flaws::all(&server).await;
    }
}

#[tokio::test]
async fn azure_does_what_a_store_has_to_and_says_what_is_wrong() {
    if let Some(server) = Azurite::start() {
        checks::all(&server).await;
        checks::all(&server.with_token()).await;
        flaws::all(&server).await;
    }
}

#[tokio::test]
async fn the_double_of_google_does_what_a_store_has_to_and_says_what_is_wrong() {
    let server = Double::start();
    checks::all(&server).await;
    flaws::all(&server).await;
}

#[tokio::test]
#[ignore = "needs a bucket of Google's: QUORATE_GCS=gs://bucket/prefix QUORATE_GCS_KEY=/path/to/service-account.json"]
async fn google_does_what_a_store_has_to_and_says_what_is_wrong() {
    let bucket = Bucket::from_environment();
    checks::all(&bucket).await;
    flaws::all(&bucket).await;
    Box::pin(care::all(&bucket)).await;
    bucket.clear().await;
}

#[tokio::test]
async fn backups_go_to_a_volume_and_back_and_the_old_ones_go() {
    Box::pin(care::all(&Volume::new())).await;
}

#[tokio::test]
async fn backups_go_to_s3_and_back_and_the_old_ones_go() {
    if let Some(server) = VersityGw::start() {
        Box::pin(care::all(&server)).await;
    }
}

#[tokio::test]
async fn backups_go_to_s3_that_knows_a_bucket_by_its_host_and_back_and_the_old_ones_go() {
    if let Some(server) = VersityGw::with_virtual_hosts() {
        Box::pin(care::all(&server)).await;
    }
}

#[tokio::test]
async fn backups_go_to_azure_and_back_and_the_old_ones_go() {
    if let Some(server) = Azurite::start() {
        Box::pin(care::all(&server)).await;
    }
}

#[tokio::test]
async fn backups_go_to_the_double_of_google_and_back_and_the_old_ones_go() {
    Box::pin(care::all(&Double::start())).await;
}

#[tokio::test]
async fn objects_that_a_bucket_has_locked_are_told_and_the_rest_goes() {
    if let Some(server) = VersityGw::start() {
        Box::pin(locks::that_refuse_are_told_and_the_rest_goes(&server)).await;
    }
}

#[tokio::test]
async fn an_archive_whose_retention_meets_a_lock_leaves_what_is_locked_and_records_on() {
    if let Some(server) = VersityGw::start() {
        Box::pin(locks::are_left_by_an_archive_that_records_on(&server)).await;
    }
}

#[tokio::test]
async fn objects_that_a_bucket_with_versions_has_locked_are_shown_no_more_and_kept() {
    if let Some(server) = VersityGw::with_versions() {
        Box::pin(locks::that_are_kept_as_versions_are_shown_no_more(&server)).await;
    }
}

#[tokio::test]
async fn s3_does_what_a_store_has_to_over_tls() {
    tls::does_what_a_store_has_to().await;
}

#[test]
fn another_region_than_the_buckets_is_told_with_the_right_one() {
    if let Some(server) = VersityGw::start() {
        flaws::of_the_region_are_told(&server);
    }
}

#[test]
fn a_certificate_is_trusted_where_its_authority_is_told_and_nowhere_else() {
    tls::is_trusted_where_its_authority_is_told();
}

#[tokio::test]
async fn an_archive_trusts_another_authority_as_soon_as_it_is_told() {
    tls::is_trusted_anew_without_a_restart().await;
}

#[test]
fn keys_of_s3_in_the_environment_are_taken_where_there_is_no_secret_and_nothing_else_is() {
    ambient::keys_of_s3_are_taken();
}

#[test]
fn the_identity_of_a_pod_is_exchanged_for_keys_of_s3() {
    ambient::an_identity_of_a_pod_is_exchanged_for_keys_of_s3();
}

#[test]
fn the_token_of_a_pod_is_exchanged_for_keys_of_a_role_of_s3_and_read_anew_when_they_run_out() {
    web_identity::is_exchanged();
}

#[test]
fn a_token_that_is_not_exchanged_for_keys_of_s3_is_told_with_the_role_and_not_shown() {
    web_identity::that_is_not_exchanged_is_told();
}

#[test]
fn the_token_of_a_pod_is_exchanged_for_one_of_azure_and_read_anew_when_that_runs_out() {
    workload_identity::is_exchanged();
}

#[test]
fn a_token_that_is_not_exchanged_for_one_of_azure_or_not_taken_there_is_told_and_not_shown() {
    workload_identity::that_is_not_exchanged_is_told();
}

#[test]
fn a_key_file_of_google_that_the_environment_names_is_taken() {
    ambient::a_key_file_of_google_is_taken();
}

#[test]
fn the_account_of_an_instance_of_google_is_asked_for_a_token_and_again_when_that_runs_out() {
    instance::is_asked_for();
}

#[test]
fn an_account_of_an_instance_of_google_that_may_not_write_is_told_and_its_token_not_shown() {
    instance::that_may_not_write_is_told();
}

#[tokio::test]
async fn users_that_change_are_noticed_also_where_there_is_always_something_to_store() {
    slow::users_change().await;
}

#[tokio::test]
async fn what_is_written_while_a_store_refuses_the_credentials_is_stored_with_new_ones() {
    refused::until_it_is_told_the_new_key().await;
}

#[tokio::test]
async fn an_archive_that_starts_while_the_store_does_not_serve_waits_and_then_records() {
    Box::pin(late::is_waited_for()).await;
}

#[tokio::test]
async fn troubles_of_the_store_while_an_archive_records_cost_no_revision_and_no_generation() {
    for server in each_troubled() {
        Box::pin(troubles::of_a_record_are_passed_over(&*server)).await;
    }
}

#[tokio::test]
async fn what_is_recorded_by_a_put_that_comes_late_is_recorded_once() {
    for server in each_troubled() {
        Box::pin(troubles::of_a_record_that_come_late_are_passed_over(&*server)).await;
    }
}

/// The stores that can be told to have troubles.
fn each_troubled() -> impl Iterator<Item = Box<dyn Troubling>> {
    let double = once_with(|| Box::new(Double::start()) as Box<dyn Troubling>);
    let s3 = once_with(Troubled::s3).flatten().map(|s3| Box::new(s3) as Box<dyn Troubling>);
    let azure = once_with(Troubled::azure).flatten().map(|azure| Box::new(azure) as Box<dyn Troubling>);
    double.chain(s3).chain(azure)
}

fn on_each_troubled(meets: impl Fn(&dyn Troubling)) {
    each_troubled().for_each(|server| meets(&*server));
}

#[test]
fn what_a_store_refuses_for_a_moment_is_asked_again() {
    on_each_troubled(|server| troubles::are_passed_over(server, Trouble::Refused));
}

#[test]
fn a_part_whose_connection_is_lost_is_sent_again() {
    on_each_troubled(|server| troubles::are_passed_over(server, Trouble::Cut));
}

#[test]
fn a_put_whose_answer_is_lost_leaves_one_backup() {
    on_each_troubled(|server| troubles::leave_one_backup(server, Trouble::AnswerLost));
}

#[test]
fn a_put_that_meets_a_conflict_where_nothing_is_leaves_one_backup() {
    on_each_troubled(|server| troubles::leave_one_backup(server, Trouble::Conflict));
}

#[test]
fn a_read_whose_connection_is_lost_goes_on_where_it_broke_off() {
    on_each_troubled(troubles::of_reads_are_passed_over);
}

#[test]
fn a_read_that_never_comes_to_its_end_is_told_and_nothing_appears() {
    troubles::of_reads_that_last_are_told();
}

#[tokio::test]
async fn a_copy_whose_read_loses_its_connection_goes_on_where_it_broke_off() {
    for server in each_troubled() {
        Box::pin(troubles::of_a_copy_are_passed_over(&*server)).await;
    }
}

#[test]
fn a_copy_whose_read_never_comes_to_its_end_is_told_and_is_no_backup() {
    troubles::of_a_copy_that_last_are_told();
}

#[test]
fn a_store_that_overwrites_is_refused_each_time_before_a_backup_is_written() {
    on_each_troubled(troubles::of_a_store_that_overwrites_are_told);
}

#[tokio::test]
async fn an_archive_refuses_a_store_that_overwrites_before_anything_is_recorded() {
    for server in each_troubled() {
        Box::pin(troubles::of_a_store_that_overwrites_are_told_by_an_archive(&*server)).await;
    }
}

#[tokio::test]
async fn an_option_that_is_not_known_is_told_with_those_that_are_whatever_the_command() {
    Box::pin(flaws::of_an_option_are_told_with_what_is_known()).await;
}

#[test]
fn s3_is_told_the_key_to_encrypt_by_and_the_token_of_a_session() {
    wire::has_what_options_and_credentials_say();
}

#[tokio::test]
async fn a_cluster_comes_back_from_a_volume() {
    whole_way::go(&Volume::new()).await;
}

#[tokio::test]
async fn a_cluster_comes_back_from_s3() {
    if let Some(server) = VersityGw::start() {
        whole_way::go(&server).await;
    }
}

#[tokio::test]
async fn a_cluster_comes_back_from_azure() {
    if let Some(server) = Azurite::start() {
        whole_way::go(&server).await;
    }
}

#[tokio::test]
async fn a_cluster_comes_back_from_the_double_of_google() {
    whole_way::go(&Double::start()).await;
}

#[tokio::test]
#[ignore = "needs a bucket of Google's: QUORATE_GCS=gs://bucket/prefix QUORATE_GCS_KEY=/path/to/service-account.json"]
async fn a_cluster_comes_back_from_google() {
    let bucket = Bucket::from_environment();
    whole_way::go(&bucket).await;
    bucket.clear().await;
}
