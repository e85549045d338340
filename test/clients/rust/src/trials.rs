//! Programs that use a client as its users do, and say what became of it: lines of JSON as in ../trials.ts.

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use serde_json::{Value, json};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// A feature, and what gives a note for the table and panics otherwise.
pub type Trial<'a> = (&'static str, LocalBoxFuture<'a, String>);

/// How many pieces are read of an answer of the endless model.
const TAKEN: usize = 40;

static GIVEN: OnceLock<Value> = OnceLock::new();
static PANIC: Mutex<String> = Mutex::new(String::new());

/// Reads where the server is, and what stands in ../trials.ts.
pub fn begin() {
    GIVEN.set(serde_json::from_reader(std::io::stdin()).unwrap()).unwrap();
    std::panic::set_hook(Box::new(|info| *PANIC.lock().unwrap() = info.to_string()));
}

pub fn place(name: &str) -> &'static Value {
    &GIVEN.get().unwrap()["place"][name]
}

pub fn fact(name: &str) -> &'static Value {
    &GIVEN.get().unwrap()["facts"][name]
}

pub fn text(name: &str) -> String {
    fact(name).as_str().unwrap().into()
}

pub fn address() -> &'static str {
    place("address").as_str().unwrap()
}

pub fn paris() -> Vec<Value> {
    vec![json!({ "city": "Paris" })]
}

pub fn both() -> Vec<Value> {
    vec![json!({ "city": "Paris" }), json!({ "city": "Rome" })]
}

pub fn tried<'a>(feature: &'static str, trial: impl Future<Output = String> + 'a) -> Trial<'a> {
    (feature, trial.boxed_local())
}

/// Runs the trials of one client, and prints what became of each.
pub async fn report(client: &str, package: &str, trials: Vec<Trial<'_>>) {
    let version = version_of(package);
    for (feature, trial) in trials {
        if feature == "wrong_key" && place("strict").is_null() || feature == "listener" && place("listener").is_null() {
            continue;
        }
        let (result, note) = match AssertUnwindSafe(trial).catch_unwind().await {
            Ok(note) => ("works", note),
            Err(_) => ("fails", PANIC.lock().unwrap().clone()),
        };
        let outcome = json!({
            "client": client, "version": version, "language": "Rust", "feature": feature, "result": result, "note": note
        });
        println!("{outcome}");
    }
}

fn version_of(package: &str) -> &'static str {
    let (_, rest) = include_str!("../Cargo.lock").split_once(&format!("name = \"{package}\"\nversion = \"")).unwrap();
    rest.split_once('"').unwrap().0
}

pub fn pieces_of(pieces: &[String]) -> String {
    assert_eq!(pieces.concat(), text("ANSWER"));
    let count = pieces.iter().filter(|piece| !piece.is_empty()).count();
    assert!(count > 4, "{pieces:?}");
    format!("{count} chunks")
}

/// Holds an object to CITY_REPORT.
pub fn valid_report(report: &str) {
    let value: Value = serde_json::from_str(report).unwrap();
    let one_of = |name: &str, allowed: [&str; 2]| allowed.contains(&value[name].as_str().unwrap_or_default());
    let valid = one_of("city", ["Paris", "Rome"]) && one_of("rank", ["1", "2"]) && value["warm"].is_boolean();
    assert!(valid && value.as_object().unwrap().len() == 3, "{report}");
}

/// For the texts red, blue and red again.
pub fn same_vectors(vectors: &[Vec<f32>]) -> String {
    let [red, blue, again] = vectors else { panic!("{} vectors", vectors.len()) };
    let distance = |other: &[f32]| red.iter().zip(other).map(|(one, two)| (one - two).abs()).fold(0.0, f32::max);
    assert!(distance(again) < 1e-5 && distance(blue) > 1e-2);
    assert_eq!(red.len() as u64, fact("DIMENSION").as_u64().unwrap());
    format!("{} dimensions; equal texts have equal vectors", red.len())
}

/// Reads the beginning of an answer that would go on, leaves, and waits until the server runs nothing of it any more:
/// long before the answer would have ended.
pub async fn leaves_in_the_middle<Piece>(stream: impl futures::Stream<Item = Piece>) -> String {
    use futures::StreamExt;
    let taken = Box::pin(stream.take(TAKEN)).count().await;
    assert_eq!(taken, TAKEN, "the answer ended");
    let left = Instant::now();
    while running().await {
        let waited = left.elapsed().as_secs_f64() * 1000.0;
        assert!(waited < place("leavingLimit").as_f64().unwrap(), "the answer still runs after its reader left");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    "its slot is free immediately".into()
}

async fn running() -> bool {
    let reply = reqwest::get(format!("{}/api/ps", address())).await.unwrap().text().await.unwrap();
    let listed: Value = serde_json::from_str(&reply).unwrap();
    let endless = fact("ENDLESS");
    listed["models"].as_array().unwrap().iter().any(|model| model["name"] == *endless && model["running"] != 0)
}

/// Names the forms of the base address that were tried: what follows host and port.
pub fn forms(endings: &[&str]) -> String {
    let quoted = |ending: &&str| if ending.is_empty() { "nothing".into() } else { format!("`{ending}`") };
    let words: Vec<String> = endings.iter().map(quoted).collect();
    format!("with {} after host and port", words.join(", "))
}
