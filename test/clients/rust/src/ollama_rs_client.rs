use crate::trials::*;
use futures::StreamExt;
use ollama_rs::Ollama;
use ollama_rs::error::OllamaError;
use ollama_rs::generation::chat::request::ChatMessageRequest;
use ollama_rs::generation::chat::{ChatMessage, ChatMessageResponse};
use ollama_rs::generation::completion::request::GenerationRequest;
use ollama_rs::generation::embeddings::request::GenerateEmbeddingsRequest;
use ollama_rs::generation::images::Image;
use ollama_rs::generation::parameters::FormatType;
use ollama_rs::generation::tools::ToolInfo;
use ollama_rs::models::ModelOptions;
use serde_json::{Value, json};

fn open(base: String) -> Ollama {
    Ollama::builder().url(base).build()
}

fn greedy() -> ModelOptions {
    ModelOptions::default().temperature(0.0)
}

fn request(messages: Vec<ChatMessage>) -> ChatMessageRequest {
    ChatMessageRequest::new(text("MODEL"), messages).options(greedy())
}

fn said(name: &str) -> ChatMessage {
    ChatMessage::user(text(name))
}

async fn ask(client: &Ollama, request: ChatMessageRequest) -> ChatMessageResponse {
    client.send_chat_messages(request).await.unwrap()
}

fn weather() -> Vec<ToolInfo> {
    vec![serde_json::from_value(json!({ "type": "function", "function": fact("WEATHER") })).unwrap()]
}

fn calls(message: &ChatMessage) -> Vec<Value> {
    message.tool_calls.iter().map(|call| call.function.arguments.clone()).collect()
}

/// That it is refused; this client hands on the text of a refusal, without its status.
fn refused<Reply: std::fmt::Debug>(reply: Result<Reply, OllamaError>, words: &str) -> String {
    match reply {
        Err(OllamaError::Other(message)) => assert!(message.contains(words), "{message}"),
        other => panic!("{other:?}"),
    }
    "OllamaError with the server's message".into()
}

pub async fn run() {
    let client = &open(format!("{}/ollama/", address()));
    let model = text("MODEL");
    let model = model.as_str();
    let trials = vec![
        tried("models", async {
            assert!(client.list_local_models().await.unwrap().iter().any(|one| one.name.starts_with(model)));
            String::new()
        }),
        tried("chat", async {
            assert_eq!(ask(client, request(vec![said("QUESTION")])).await.message.content, text("ANSWER"));
            String::new()
        }),
        tried("system", async {
            let messages = vec![ChatMessage::system("You are Leo.".into()), ChatMessage::user("Who are you?".into())];
            assert_eq!(ask(client, request(messages)).await.message.content, "I am Leo.");
            String::new()
        }),
        tried("stream", async {
            let mut stream = client.send_chat_messages_stream(request(vec![said("QUESTION")])).await.unwrap();
            let mut pieces = vec![];
            while let Some(part) = stream.next().await {
                pieces.push(part.unwrap().message.content);
            }
            pieces_of(&pieces)
        }),
        tried("usage", async {
            let counts = ask(client, request(vec![said("QUESTION")])).await.final_data.unwrap();
            assert_eq!((counts.prompt_eval_count, counts.eval_count), (19, 9));
            assert!(counts.eval_duration > 0 && counts.total_duration >= counts.eval_duration);
            "19 + 9 tokens, durations in nanoseconds".into()
        }),
        tried("stop", async {
            let stopped = request(vec![said("QUESTION")]).options(greedy().stop(vec![" of France".into()]));
            assert_eq!(ask(client, stopped).await.message.content, "The capital");
            String::new()
        }),
        tried("completions", async {
            let asked = GenerationRequest::new(model.into(), text("QUESTION")).options(greedy());
            assert_eq!(client.generate(asked).await.unwrap().response, text("ANSWER"));
            "generate".into()
        }),
        tried("tools", async {
            let first = ask(client, request(vec![said("ASK_WEATHER")]).tools(weather())).await.message;
            assert_eq!(calls(&first), paris());
            let messages = vec![said("ASK_WEATHER"), first, ChatMessage::tool("sunny".into())];
            assert_eq!(ask(client, request(messages).tools(weather())).await.message.content, text("SAY_WEATHER"));
            text("SAY_WEATHER")
        }),
        tried("two_tools", async {
            assert_eq!(calls(&ask(client, request(vec![said("ASK_TWO")]).tools(weather())).await.message), both());
            "Paris and Rome".into()
        }),
        tried("streamed_tools", async {
            let asked = request(vec![said("ASK_TWO")]).tools(weather());
            let parts: Vec<_> = client.send_chat_messages_stream(asked).await.unwrap().collect().await;
            let called: Vec<Value> = parts.into_iter().flat_map(|part| calls(&part.unwrap().message)).collect();
            assert_eq!(called, both());
            "Paris and Rome, each whole".into()
        }),
        tried("schema", async {
            let format: FormatType = serde_json::from_value(fact("CITY_REPORT").clone()).unwrap();
            valid_report(&ask(client, request(vec![said("QUESTION")]).format(format)).await.message.content);
            "format".into()
        }),
        tried("embeddings", async {
            let asked = GenerateEmbeddingsRequest::new(model.into(), vec!["red", "blue", "red"].into());
            format!("embed: {}", same_vectors(&client.generate_embeddings(asked).await.unwrap().embeddings))
        }),
        tried("show", async {
            let shown = client.show_model_info(model.into()).await.unwrap();
            assert!(!shown.capabilities.is_empty() && !shown.model_info.is_empty() && !shown.modelfile.is_empty());
            "capabilities, model_info, modelfile".into()
        }),
        tried("pull", async {
            assert_eq!(client.pull_model(model.into(), false).await.unwrap().message, "success");
            "of an installed model".into()
        }),
        tried("copy", async {
            client.copy_model(model.into(), "rust/copy".into()).await.unwrap();
            client.show_model_info("rust/copy".into()).await.unwrap();
            client.delete_model("rust/copy".into()).await.unwrap();
            refused(client.show_model_info("rust/copy".into()).await, "not found");
            String::new()
        }),
        tried("push", async {
            refused(client.push_model(model.into(), false).await, "error");
            "OllamaError: there is no registry to push to".into()
        }),
        tried("images", async {
            let seen = said("QUESTION").add_image(Image::from_base64(text("PNG")));
            refused(client.send_chat_messages(request(vec![seen])).await, "image")
        }),
        tried("not_found", async {
            let asked = ChatMessageRequest::new("no/such".into(), vec![said("QUESTION")]);
            refused(client.send_chat_messages(asked).await, "model 'no/such' not found")
        }),
        tried("cancel", async {
            let asked = ChatMessageRequest::new(text("ENDLESS"), vec![said("QUESTION")]).options(greedy());
            leaves_in_the_middle(client.send_chat_messages_stream(asked).await.unwrap()).await
        }),
        tried("bare_name", async {
            let asked = ChatMessageRequest::new("tiny-chat".into(), vec![said("QUESTION")]).options(greedy());
            assert_eq!(ask(client, asked).await.message.content, text("ANSWER"));
            "tiny-chat".into()
        }),
        tried("listener", async {
            let client = open(place("listener").as_str().unwrap().into());
            assert_eq!(ask(&client, request(vec![said("QUESTION")])).await.message.content, text("ANSWER"));
            "chat".into()
        }),
        tried("addresses", async {
            let endings = ["", "/", "/ollama/"];
            for ending in endings {
                let client = open(format!("{}{ending}", address()));
                let answer = ask(&client, request(vec![said("QUESTION")])).await.message.content;
                assert_eq!(answer, text("ANSWER"), "{ending}");
            }
            forms(&endings)
        }),
    ];
    report("ollama-rs", "ollama-rs", trials).await;
}
