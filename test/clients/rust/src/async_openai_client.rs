use crate::trials::*;
use async_openai::Client;
use async_openai::config::OpenAIConfig;
use async_openai::error::{ApiErrorResponse, OpenAIError};
use async_openai::types::chat::{ChatCompletionMessageToolCalls, ChatCompletionResponseMessage, CreateChatCompletionRequest};
use async_openai::types::responses::ResponseStreamEvent;
use futures::StreamExt;
use serde_json::{Value, json};

fn open(base: &str, key: &str) -> Client<OpenAIConfig> {
    Client::with_config(OpenAIConfig::new().with_api_base(base).with_api_key(key))
}

/// The question to the model at temperature 0, with other fields as they are given.
fn question(more: Value) -> CreateChatCompletionRequest {
    let mut request = json!({ "model": fact("MODEL"), "messages": said("QUESTION"), "temperature": 0.0 });
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(request).unwrap()
}

fn said(name: &str) -> Value {
    json!([{ "role": "user", "content": fact(name) }])
}

fn tools() -> Value {
    json!([{ "type": "function", "function": fact("WEATHER") }])
}

async fn ask(client: &Client<OpenAIConfig>, more: Value) -> ChatCompletionResponseMessage {
    client.chat().create(question(more)).await.unwrap().choices.swap_remove(0).message
}

fn calls(message: &ChatCompletionResponseMessage) -> Vec<Value> {
    let arguments = |call: &ChatCompletionMessageToolCalls| match call {
        ChatCompletionMessageToolCalls::Function(call) => serde_json::from_str(&call.function.arguments).unwrap(),
        other => panic!("{other:?}"),
    };
    message.tool_calls.iter().flatten().map(arguments).collect()
}

fn refused<Reply: std::fmt::Debug>(reply: Result<Reply, OpenAIError>, status: u16) -> ApiErrorResponse {
    match reply {
        Err(OpenAIError::ApiError(error)) if error.status_code.as_u16() == status => error,
        other => panic!("{other:?}"),
    }
}

async fn fails(client: &Client<OpenAIConfig>, status: u16, more: Value) -> String {
    let error = refused(client.chat().create(question(more)).await, status);
    format!("OpenAIError::ApiError, {}", error.api_error.code.unwrap())
}

pub async fn run() {
    let v1 = format!("{}/v1", address());
    let client = &open(&v1, "any");
    let trials = vec![
        tried("models", async {
            let model = text("MODEL");
            assert!(client.models().list().await.unwrap().data.iter().any(|one| one.id == model));
            assert_eq!(client.models().retrieve(&model).await.unwrap().id, model);
            "and one by its id".into()
        }),
        tried("chat", async {
            assert_eq!(ask(client, json!({})).await.content, Some(text("ANSWER")));
            String::new()
        }),
        tried("system", async {
            let messages = json!([
                { "role": "system", "content": "You are Leo." }, { "role": "user", "content": "Who are you?" }
            ]);
            assert_eq!(ask(client, json!({ "messages": messages })).await.content.unwrap(), "I am Leo.");
            String::new()
        }),
        tried("stream", async {
            let mut stream = client.chat().create_stream(question(json!({}))).await.unwrap();
            let mut pieces = vec![];
            while let Some(part) = stream.next().await {
                pieces.extend(part.unwrap().choices.into_iter().filter_map(|choice| choice.delta.content));
            }
            pieces_of(&pieces)
        }),
        tried("usage", async {
            let whole = client.chat().create(question(json!({}))).await.unwrap().usage.unwrap();
            let streamed = question(json!({ "stream_options": { "include_usage": true } }));
            let parts: Vec<_> = client.chat().create_stream(streamed).await.unwrap().collect().await;
            let last = parts.into_iter().next_back().unwrap().unwrap().usage.unwrap();
            for usage in [whole, last] {
                assert_eq!((usage.prompt_tokens, usage.completion_tokens), (19, 9));
            }
            "whole and streamed: 19 + 9 tokens".into()
        }),
        tried("stop", async {
            assert_eq!(ask(client, json!({ "stop": [" of France"] })).await.content.unwrap(), "The capital");
            let short = client.chat().create(question(json!({ "max_completion_tokens": 4 }))).await.unwrap();
            assert_eq!(json!(short.choices[0].finish_reason), "length");
            String::new()
        }),
        tried("choices", async {
            let reply = client.chat().create(question(json!({ "n": 2 }))).await.unwrap();
            assert_eq!(reply.choices.len(), 2);
            "n: 2".into()
        }),
        tried("logprobs", async {
            let asked = question(json!({ "logprobs": true, "top_logprobs": 2 }));
            let reply = client.chat().create(asked).await.unwrap();
            let tokens = reply.choices[0].logprobs.clone().unwrap().content.unwrap();
            assert_eq!(tokens.iter().map(|one| one.token.as_str()).collect::<String>(), text("ANSWER"));
            assert!(tokens.iter().all(|one| one.logprob <= 0.0 && one.top_logprobs.len() == 2));
            "with two alternatives each".into()
        }),
        tried("completions", async {
            let prompt = json!({ "model": fact("MODEL"), "prompt": "The capital of", "temperature": 0.0, "max_tokens": 8 });
            let request = || serde_json::from_value(prompt.clone()).unwrap();
            let whole = client.completions().create(request()).await.unwrap().choices[0].text.clone();
            let parts: Vec<_> = client.completions().create_stream(request()).await.unwrap().collect().await;
            let streamed: String =
                parts.into_iter().flat_map(|part| part.unwrap().choices).map(|choice| choice.text).collect();
            assert!(!whole.is_empty());
            assert_eq!(whole, streamed);
            "whole and streamed".into()
        }),
        tried("tools", async {
            let message = ask(client, json!({ "messages": said("ASK_WEATHER"), "tools": tools() })).await;
            assert_eq!(calls(&message), paris());
            let call = json!(message.tool_calls)[0]["id"].clone();
            let result = json!({ "role": "tool", "tool_call_id": call, "content": "sunny" });
            let messages = json!([said("ASK_WEATHER")[0], message, result]);
            let end = ask(client, json!({ "messages": messages, "tools": tools() })).await;
            assert_eq!(end.content, Some(text("SAY_WEATHER")));
            text("SAY_WEATHER")
        }),
        tried("two_tools", async {
            let message = ask(client, json!({ "messages": said("ASK_TWO"), "tools": tools() })).await;
            assert_eq!(calls(&message), both());
            "Paris and Rome".into()
        }),
        tried("streamed_tools", async {
            let asked = question(json!({ "messages": said("ASK_TWO"), "tools": tools() }));
            let mut stream = client.chat().create_stream(asked).await.unwrap();
            let mut arguments = vec![String::new(); 2];
            while let Some(part) = stream.next().await {
                for chunk in part.unwrap().choices.into_iter().flat_map(|choice| choice.delta.tool_calls).flatten() {
                    arguments[chunk.index as usize] += &chunk.function.and_then(|one| one.arguments).unwrap_or_default();
                }
            }
            let called: Vec<Value> = arguments.iter().map(|one| serde_json::from_str(one).unwrap()).collect();
            assert_eq!(called, both());
            "Paris and Rome".into()
        }),
        tried("forced_tool", async {
            let forced = json!({ "type": "function", "function": { "name": fact("WEATHER")["name"] } });
            let asked = json!({ "messages": said("ASK_WEATHER"), "tools": tools(), "tool_choice": forced });
            assert_eq!(calls(&ask(client, asked).await).len(), 1);
            let none = json!({ "messages": said("ASK_WEATHER"), "tools": tools(), "tool_choice": "none" });
            assert_eq!(calls(&ask(client, none).await).len(), 0);
            "by name; none if tool_choice is none".into()
        }),
        tried("schema", async {
            let schema = json!({ "name": "city_report", "schema": fact("CITY_REPORT"), "strict": true });
            let format = json!({ "type": "json_schema", "json_schema": schema });
            valid_report(&ask(client, json!({ "response_format": format })).await.content.unwrap());
            "response_format".into()
        }),
        tried("embeddings", async {
            let asked = json!({ "model": fact("MODEL"), "input": ["red", "blue", "red"] });
            let reply = client.embeddings().create(serde_json::from_value(asked).unwrap()).await.unwrap();
            same_vectors(&reply.data.into_iter().map(|one| one.embedding).collect::<Vec<_>>())
        }),
        tried("responses", async {
            let asked = json!({ "model": fact("MODEL"), "input": fact("QUESTION"), "temperature": 0.0 });
            let reply = client.responses().create(serde_json::from_value(asked).unwrap()).await.unwrap();
            assert_eq!(reply.output_text(), Some(text("ANSWER")));
            "text".into()
        }),
        tried("streamed_responses", async {
            let asked = json!({ "model": fact("MODEL"), "input": fact("QUESTION"), "temperature": 0.0, "stream": true });
            let mut stream = client.responses().create_stream(serde_json::from_value(asked).unwrap()).await.unwrap();
            let mut pieces = vec![];
            let mut ended = false;
            while let Some(event) = stream.next().await {
                match event.unwrap() {
                    ResponseStreamEvent::ResponseOutputTextDelta(part) => pieces.push(part.delta),
                    ResponseStreamEvent::ResponseCompleted(_) => ended = true,
                    _ => {}
                }
            }
            assert!(ended);
            pieces_of(&pieces)
        }),
        tried("images", async {
            let url = format!("data:image/png;base64,{}", text("PNG"));
            let content = json!([{ "type": "image_url", "image_url": { "url": url } }]);
            fails(client, 400, json!({ "messages": [{ "role": "user", "content": content }] })).await
        }),
        tried("not_found", async { fails(client, 404, json!({ "model": "no/such" })).await }),
        tried("bad_request", async { fails(client, 400, json!({ "temperature": -1.0 })).await }),
        tried("context", async { fails(client, 400, json!({ "messages": said("LONG") })).await }),
        tried("wrong_key", async {
            let strict = format!("{}/v1", place("strict")["address"].as_str().unwrap());
            refused(open(&strict, "wrong").models().list().await, 401);
            open(&strict, place("strict")["key"].as_str().unwrap()).models().list().await.unwrap();
            "OpenAIError::ApiError, status 401; the right key works".into()
        }),
        tried("cancel", async {
            let endless = question(json!({ "model": fact("ENDLESS") }));
            leaves_in_the_middle(client.chat().create_stream(endless).await.unwrap()).await
        }),
        tried("addresses", async {
            let endings = ["/v1/", "/ollama/v1"];
            for ending in endings {
                let message = ask(&open(&format!("{}{ending}", address()), "any"), json!({})).await;
                assert_eq!(message.content, Some(text("ANSWER")), "{ending}");
            }
            forms(&endings)
        }),
    ];
    report("async-openai", "async-openai", trials).await;
}
