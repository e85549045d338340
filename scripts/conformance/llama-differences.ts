import type { Outcome, Sitting } from './llama-tests.ts'

/** Tests of llama.cpp that corral fails on purpose, or that cannot hold for it, by the beginning of their names. */
export const EXPLAINED: readonly { tests: RegExp; reason: string }[] = [
  {
    tests: /^unit\/test_basic\.py::test_server_multiple_addresses/,
    reason: '`host` is one address; `api-ollama.listen` and a proxy give further ones.'
  },
  {
    tests: /^unit\/test_basic\.py::test_server_props/,
    reason: '`GET /props` without a model is what a router says, and paths of files are told to nobody.'
  },
  {
    tests: /^unit\/test_basic\.py::test_server_(models|model_aliases_and_tags)/,
    reason:
      'Aliases have rows of their own in lists of models, since clients offer what they find there. There are no tags.'
  },
  {
    tests: /^unit\/test_basic\.py::test_server_slots|^unit\/test_metrics\.py::test_metrics_disabled/,
    reason:
      '`GET /slots` and `GET /metrics` cannot be switched off; keys guard them, and slots never tell what is asked in them.'
  },
  {
    tests: /^unit\/test_metrics\.py::test_metrics_/,
    reason:
      "`GET /metrics` has corral's own figures of all models, with other names, and no header `Process-Start-Time-Unix`."
  },
  {
    tests: /^unit\/test_(mcp_servers|tools_builtin)\.py::/,
    reason:
      'The server runs no tools, neither built-in ones nor those of MCP servers: a model touches nothing of this machine.'
  },
  {
    tests: /^unit\/test_ctx_shift\.py::test_ctx_shift_disabled_long_prompt/,
    reason: 'What is too long is refused as llama-server does, in other words than the test wants.'
  },
  {
    tests: /^unit\/test_kv_keep_only_active\.py::/,
    reason: "It reads llama-server's log from the program's output; corral keeps that of engines apart (`corral logs`)."
  },
  {
    tests: /^unit\/test_compat_gcp\.py::/,
    reason: "There is no address for Google's Vertex AI (`AIP_PREDICT_ROUTE`)."
  },
  {
    tests: /^unit\/test_compat_oai_responses\.py::test_responses_stream_with_llama_telemetry/,
    reason: "Events of the Responses API are OpenAI's, without llama-server's `timings` and `prompt_progress`."
  },
  {
    tests: /^unit\/test_(security\.py::test_cors_proxy|proxy\.py::)/,
    reason: 'There is no proxy that asks other servers for a page.'
  },
  {
    tests: /^unit\/test_security\.py::test_cors_/,
    reason:
      'Preflight requests are answered with 204 where a page may call, and with 403 where it may not (`security.origins`); llama-server says 200 to both, and the browser decides.'
  },
  {
    tests: /^unit\/test_security\.py::test_local_media_file/,
    reason: 'Requests never name files of the server, so there is no `--media-path`; pictures are sent.'
  },
  {
    tests: /^unit\/test_slot_save\.py::/,
    reason:
      'Slots are not saved and restored by clients: corral keeps what has been read of prompts by itself (docs/configuration.md, `prompt_cache`).'
  },
  {
    tests: /^unit\/test_vision_api\.py::test_(v1_)?models_supports/,
    reason:
      'Lists of models have `data`, as a router has them, and not also `models`; `architecture.input_modalities` says that a model sees.'
  },
  {
    tests: /^unit\/test_vision_api\.py::test_vision_(embeddings|completion)/,
    reason:
      'Pictures belong into messages; in prompts and texts to embed they are refused with `unsupported_capability`.'
  },
  {
    tests: /^unit\/test_sleep\.py::/,
    reason:
      'A model that nobody uses is unloaded as a whole (`keep_alive`) and has no state `is_sleeping`; `GET /models` says `unloaded`.'
  },
  {
    tests: /^unit\/test_compat_anthropic\.py::test_anthropic_(tool_result_with_image|vision_format_accepted)/,
    reason: 'A picture for a model that cannot see is an error of the request: 400, where llama-server says 500.'
  },
  {
    tests: /^unit\/test_compat_anthropic\.py::test_anthropic_empty_messages/,
    reason: 'A conversation without messages is refused with 400, as Anthropic does.'
  },
  {
    tests:
      /^unit\/test_chat_completion\.py::test_(chat_template_assistant_prefill|chat_template_continue|chat_template$|verbose_debug)/,
    reason:
      'There is no `__verbose` in answers, which shows the prompt as the engine gets it; `POST /apply-template` shows that.'
  },
  {
    tests: /^unit\/test_embedding\.py::test_embedding_mixed_input/,
    reason:
      'As at OpenAI, a list of inputs is all text or all tokens, and an empty text is refused; prompts of completions may mix them.'
  },
  {
    tests: /^unit\/test_embedding\.py::test_embedding_error_prompt_too_long/,
    reason:
      'The error is the same for all APIs (`context_exceeded`) and says the numbers in other words than the test wants.'
  },
  {
    tests: /^unit\/test_router\.py::test_router_props/,
    reason: '`models_autoload` is always true, and `build_info` names corral.'
  },
  {
    tests: /^unit\/test_router\.py::test_router_no_models_autoload/,
    reason: 'A request loads the model that it names; there is no setting against it.'
  },
  {
    tests:
      /^unit\/test_router\.py::test_router_(unload_model|models_max_evicts_lru|queue_|api_key_required|download_model|delete_model)|^unit\/test_stream\.py::test_stream_(stop|resumes)/,
    reason:
      'They look for the state of `<owner>/<name>:<variant>` in lists. A model of which one variant is here is listed without the variant; requests take both names.'
  },
  {
    tests: /^unit\/test_router\.py::test_router_(reload_models|dedup_cache_models|.*preset)/,
    reason: "There are no preset files of llama-server's; `models` in config.yaml is what they are for."
  }
]

/** Why a test fails on corral alone, if that is known. */
export const reasonFor = (id: string) => EXPLAINED.find(({ tests }) => tests.test(id))?.reason

/** The tests that llama-server passes and corral fails. */
export function failuresOfCorral({ engine, corral }: Pick<Sitting, 'engine' | 'corral'>): Outcome[] {
  return [...corral.values()].filter(({ id, outcome }) => outcome === 'failed' && engine.get(id)?.outcome === 'passed')
}
