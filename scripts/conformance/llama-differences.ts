import type { Outcome, Sitting } from './llama-tests.ts'

/** llama.cpp tests that corral fails on purpose or cannot pass, by the start of their names. */
export const EXPLAINED: readonly { tests: RegExp; reason: string }[] = [
  {
    tests: /^unit\/test_basic\.py::test_server_multiple_addresses/,
    reason: '`host` is one address. `api-ollama.listen` and a proxy add others.'
  },
  {
    tests: /^unit\/test_basic\.py::test_server_props/,
    reason: "`GET /props` without a model returns a router's answer, and file paths are never disclosed."
  },
  {
    tests: /^unit\/test_basic\.py::test_server_(models|model_aliases_and_tags)/,
    reason: 'Aliases have their own rows in model lists, because clients offer only listed names. There are no tags.'
  },
  {
    tests: /^unit\/test_basic\.py::test_server_slots|^unit\/test_metrics\.py::test_metrics_disabled/,
    reason: '`GET /slots` and `GET /metrics` cannot be turned off. They need a key, and slots never show prompts.'
  },
  {
    tests: /^unit\/test_metrics\.py::test_metrics_/,
    reason:
      "`GET /metrics` has corral's own metrics for all models, with other names, and no header `Process-Start-Time-Unix`."
  },
  {
    tests: /^unit\/test_(mcp_servers|tools_builtin)\.py::/,
    reason:
      'The server runs no tools, neither built-in tools nor tools of MCP servers, so a model cannot access the machine.'
  },
  {
    tests: /^unit\/test_ctx_shift\.py::test_ctx_shift_disabled_long_prompt/,
    reason:
      'Prompts that are too long are refused as in llama-server, but the wording differs from what the test expects.'
  },
  {
    tests: /^unit\/test_kv_keep_only_active\.py::/,
    reason:
      "The test reads llama-server's log from the program's output. corral stores engine logs separately (`corral logs`)."
  },
  {
    tests: /^unit\/test_compat_gcp\.py::/,
    reason: "There is no route for Google's Vertex AI (`AIP_PREDICT_ROUTE`)."
  },
  {
    tests: /^unit\/test_compat_oai_responses\.py::test_responses_stream_with_llama_telemetry/,
    reason: "Events of the Responses API are OpenAI's, without llama-server's `timings` and `prompt_progress`."
  },
  {
    tests: /^unit\/test_(security\.py::test_cors_proxy|proxy\.py::)/,
    reason: 'corral does not fetch pages from other servers for clients.'
  },
  {
    tests: /^unit\/test_security\.py::test_cors_/,
    reason:
      'Preflight requests get 204 if the origin is allowed and 403 otherwise (`security.origins`). llama-server always answers 200 and lets the browser decide.'
  },
  {
    tests: /^unit\/test_security\.py::test_local_media_file/,
    reason: 'Requests cannot name files on the server, so there is no `--media-path`. Clients send images.'
  },
  {
    tests: /^unit\/test_slot_save\.py::/,
    reason:
      'Clients cannot save and restore slots. corral saves prompt caches itself (docs/configuration.md, `prompt_cache`).'
  },
  {
    tests: /^unit\/test_vision_api\.py::test_(v1_)?models_supports/,
    reason:
      'Model lists have `data`, as in router mode, without `models`. `architecture.input_modalities` says whether a model accepts images.'
  },
  {
    tests: /^unit\/test_vision_api\.py::test_vision_(embeddings|completion)/,
    reason:
      'Images are accepted only in messages. In prompts and embedding inputs they are refused with `unsupported_capability`.'
  },
  {
    tests: /^unit\/test_sleep\.py::/,
    reason:
      'An unused model is unloaded completely (`keep_alive`) and has no state `is_sleeping`. `GET /models` reports `unloaded`.'
  },
  {
    tests: /^unit\/test_compat_anthropic\.py::test_anthropic_(tool_result_with_image|vision_format_accepted)/,
    reason: 'An image for a model without image support is a client error (400). llama-server answers 500.'
  },
  {
    tests: /^unit\/test_compat_anthropic\.py::test_anthropic_empty_messages/,
    reason: 'A conversation without messages is refused with 400, as Anthropic does.'
  },
  {
    tests:
      /^unit\/test_chat_completion\.py::test_(chat_template_assistant_prefill|chat_template_continue|chat_template$|verbose_debug)/,
    reason: "Answers have no `__verbose`, which shows the engine's prompt. Use `POST /apply-template` instead."
  },
  {
    tests: /^unit\/test_embedding\.py::test_embedding_mixed_input/,
    reason:
      "As in OpenAI's API, a list of inputs is either text or tokens, and empty text is refused. Completion prompts may mix them."
  },
  {
    tests: /^unit\/test_embedding\.py::test_embedding_error_prompt_too_long/,
    reason: 'All APIs have the same error (`context_exceeded`), whose wording differs from what the test expects.'
  },
  {
    tests: /^unit\/test_router\.py::test_router_props/,
    reason: '`models_autoload` is always true, and `build_info` names corral.'
  },
  {
    tests: /^unit\/test_router\.py::test_router_no_models_autoload/,
    reason: 'A request loads the model that it names. This cannot be turned off.'
  },
  {
    tests:
      /^unit\/test_router\.py::test_router_(unload_model|models_max_evicts_lru|queue_|api_key_required|download_model|delete_model)|^unit\/test_stream\.py::test_stream_(stop|resumes)/,
    reason:
      'The tests look for the state of `<owner>/<name>:<variant>` in lists. A model with one installed variant is listed without the variant. Requests accept both names.'
  },
  {
    tests: /^unit\/test_router\.py::test_router_(reload_models|dedup_cache_models|.*preset)/,
    reason: "llama-server's preset files are not supported. Use `models` in config.yaml instead."
  }
]

export const reasonFor = (id: string) => EXPLAINED.find(({ tests }) => tests.test(id))?.reason

export function failuresOfCorral({ engine, corral }: Pick<Sitting, 'engine' | 'corral'>): Outcome[] {
  return [...corral.values()].filter(({ id, outcome }) => outcome === 'failed' && engine.get(id)?.outcome === 'passed')
}
