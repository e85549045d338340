/**
 * Request fields that llama-server reads in chat completions and completions, from its server-schema.cpp and
 * server-common.cpp and those of older builds, and the `cache` field of corral (`PromptSlots.take`). Fields missing from this list are passed on all the same, and only
 * reported as unknown.
 */
export const KNOWN_OPTIONS: readonly string[] = `
  messages prompt input model stream stream_options include_usage tools tool_choice parallel_tool_calls response_format
  json_schema grammar grammar_type grammar_lazy grammar_triggers preserved_tokens stop n n_cmpl logprobs top_logprobs
  echo suffix input_prefix input_suffix input_extra

  max_tokens max_completion_tokens max_output_tokens n_predict n_indent n_keep n_discard n_cache_reuse cache cache_prompt
  t_max_predict_ms t_max_prompt_ms id_slot slot_id verbose timings_per_token return_tokens return_progress
  sse_ping_interval response_fields n_probs post_sampling_probs

  seed temperature top_k top_p min_p top_n_sigma typical_p tfs_z xtc_probability xtc_threshold dynatemp_range
  dynatemp_exponent repeat_last_n repeat_penalty penalize_nl penalty_prompt use_penalty_prompt_tokens frequency_penalty
  presence_penalty dry_multiplier dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers mirostat
  mirostat_tau mirostat_eta adaptive_target adaptive_decay min_keep samplers backend_sampling logit_bias ignore_eos lora
  speculative.n_max speculative.n_min speculative.p_min speculative.type speculative.ngram_size_n
  speculative.ngram_size_m speculative.ngram_min_hits

  chat_template chat_template_kwargs add_generation_prompt continue_final_message generation_prompt chat_format
  chat_parser parse_tool_calls message_delimiters reasoning_format reasoning_in_content reasoning_effort
  thinking_forced_open thinking_budget_tokens reasoning_budget reasoning_budget_tokens reasoning_budget_message
  reasoning_budget_start_tag reasoning_budget_end_tag reasoning_budget_end_tags reasoning_control enable_thinking
  think thinking reasoning thinking_budget
  image_data multimodal_data
`
  .trim()
  .split(/\s+/)
