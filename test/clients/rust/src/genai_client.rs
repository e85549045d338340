use crate::trials::*;
use futures::StreamExt;
use genai::adapter::AdapterKind;
use genai::chat::{ChatMessage, ChatOptions, ChatRequest, ChatResponse, ChatStreamEvent, JsonSpec, Tool, ToolResponse};
use genai::resolver::{AuthData, Endpoint};
use genai::{Client, ModelIden, ServiceTarget};
use serde_json::Value;

/// A client of one of the APIs that genai speaks; it wants addresses that end with a slash.
fn open(kind: AdapterKind, base: String) -> Client {
    let resolve = move |target: ServiceTarget| -> Result<ServiceTarget, genai::resolver::Error> {
        let model = ModelIden::new(kind, target.model.model_name);
        Ok(ServiceTarget { endpoint: Endpoint::from_owned(base.clone()), auth: AuthData::from_single("any"), model })
    };
    Client::builder().with_service_target_resolver_fn(resolve).build().unwrap()
}

fn greedy() -> ChatOptions {
    ChatOptions::default().with_temperature(0.0)
}

fn said(name: &str) -> ChatRequest {
    ChatRequest::from_user(text(name))
}

async fn ask(client: &Client, request: ChatRequest, options: ChatOptions) -> ChatResponse {
    client.exec_chat(text("MODEL").as_str(), request, Some(&options)).await.unwrap()
}

fn weather() -> Tool {
    let weather = fact("WEATHER");
    Tool::new(weather["name"].as_str().unwrap())
        .with_description(weather["description"].as_str().unwrap())
        .with_schema(weather["parameters"].clone())
}

fn calls(response: &ChatResponse) -> Vec<Value> {
    response.tool_calls().into_iter().map(|call| call.fn_arguments.clone()).collect()
}

/// What every API is tried with.
fn trials_of(client: &Client) -> Vec<Trial<'_>> {
    vec![
        tried("chat", async move {
            assert_eq!(ask(client, said("QUESTION"), greedy()).await.first_text().unwrap(), text("ANSWER"));
            String::new()
        }),
        tried("system", async move {
            let request = ChatRequest::from_user("Who are you?").with_system("You are Leo.");
            assert_eq!(ask(client, request, greedy()).await.first_text().unwrap(), "I am Leo.");
            String::new()
        }),
        tried("stream", async move {
            let reply = client.exec_chat_stream(text("MODEL").as_str(), said("QUESTION"), Some(&greedy())).await;
            let mut stream = reply.unwrap().stream;
            let mut pieces = vec![];
            while let Some(event) = stream.next().await {
                if let ChatStreamEvent::Chunk(chunk) = event.unwrap() {
                    pieces.push(chunk.content);
                }
            }
            pieces_of(&pieces)
        }),
        tried("usage", async move {
            let usage = ask(client, said("QUESTION"), greedy()).await.usage;
            assert_eq!((usage.prompt_tokens, usage.completion_tokens), (Some(19), Some(9)));
            "19 + 9 tokens".into()
        }),
        tried("stop", async move {
            let stopped = ask(client, said("QUESTION"), greedy().with_stop_sequence(" of France")).await;
            assert_eq!(stopped.first_text().unwrap(), "The capital");
            let short = ask(client, said("QUESTION"), greedy().with_max_tokens(4)).await;
            assert!(short.stop_reason.unwrap().is_max_tokens());
            String::new()
        }),
        tried("tools", async move {
            let request = said("ASK_WEATHER").with_tools(vec![weather()]);
            let response = ask(client, request.clone(), greedy()).await;
            assert_eq!(calls(&response), paris());
            let asked = response.into_tool_calls();
            let result = ToolResponse::from_tool_call(&asked[0], "sunny");
            let request = request.append_message(ChatMessage::from(asked)).append_message(ChatMessage::from(result));
            assert_eq!(ask(client, request, greedy()).await.first_text().unwrap(), text("SAY_WEATHER"));
            text("SAY_WEATHER")
        }),
        tried("two_tools", async move {
            let response = ask(client, said("ASK_TWO").with_tools(vec![weather()]), greedy()).await;
            assert_eq!(calls(&response), both());
            "Paris and Rome".into()
        }),
        tried("streamed_tools", async move {
            let request = said("ASK_TWO").with_tools(vec![weather()]);
            let options = greedy().with_capture_tool_calls(true);
            let reply = client.exec_chat_stream(text("MODEL").as_str(), request, Some(&options)).await;
            let mut stream = reply.unwrap().stream;
            let mut called = vec![];
            while let Some(event) = stream.next().await {
                if let ChatStreamEvent::End(end) = event.unwrap() {
                    called = end.captured_into_tool_calls().unwrap();
                }
            }
            assert_eq!(called.into_iter().map(|call| call.fn_arguments).collect::<Vec<_>>(), both());
            "Paris and Rome".into()
        }),
        tried("not_found", async move {
            let refusal = client.exec_chat("no/such", said("QUESTION"), None).await.unwrap_err();
            assert_eq!(refusal.status().unwrap().as_u16(), 404);
            "status 404".into()
        }),
        tried("context", async move {
            let refusal = client.exec_chat(text("MODEL").as_str(), said("LONG"), None).await.unwrap_err();
            assert_eq!(refusal.status().unwrap().as_u16(), 400);
            "status 400".into()
        }),
        tried("cancel", async move {
            let options = greedy().with_max_tokens(3500);
            let reply = client.exec_chat_stream(text("ENDLESS").as_str(), said("QUESTION"), Some(&options)).await;
            leaves_in_the_middle(reply.unwrap().stream).await
        }),
    ]
}

async fn embeddings(client: &Client) -> String {
    let texts = ["red", "blue", "red"].map(String::from).to_vec();
    let reply = client.embed_batch(text("MODEL").as_str(), texts, None).await.unwrap();
    same_vectors(&reply.into_vectors())
}

async fn schema(client: &Client) -> String {
    let format = JsonSpec::new("city_report", fact("CITY_REPORT").clone());
    let response = ask(client, said("QUESTION"), greedy().with_response_format(format)).await;
    valid_report(response.first_text().unwrap());
    "JsonSpec".into()
}

pub async fn run() {
    let v1 = format!("{}/v1/", address());
    for (way, kind, base, embeds, has_schemas) in [
        ("hosted-chat API", AdapterKind::OpenAI, v1.clone(), true, true),
        ("Responses API", AdapterKind::OpenAIResp, v1.clone(), false, true),
        ("Messages API", AdapterKind::Anthropic, v1, false, true),
        // Of answers' formats, its way to Ollama sends JSON mode only.
        ("Ollama", AdapterKind::Ollama, format!("{}/ollama/", address()), true, false),
    ] {
        let client = open(kind, base);
        let mut trials = trials_of(&client);
        if has_schemas {
            trials.push(tried("schema", schema(&client)));
        }
        if embeds {
            trials.push(tried("embeddings", embeddings(&client)));
        }
        report(&format!("genai ({way})"), "genai", trials).await;
    }
}
