mod async_openai_client;
mod genai_client;
mod ollama_rs_client;
mod trials;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    trials::begin();
    async_openai_client::run().await;
    genai_client::run().await;
    ollama_rs_client::run().await;
}
