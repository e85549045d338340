import { Type } from 'typebox'
import type { ModelLimits } from '../../../core/contracts/answers.ts'
import type { Model } from '../../../core/contracts/models.ts'
import { Loose } from '../../../core/http/request-fields.ts'
import catalog from './codex-catalog.json' with { type: 'json' }

export const CodexModel = Loose(
  { slug: Type.String(), context_window: Type.Integer({ description: 'The same as max_input_tokens' }) },
  { title: 'CodexModel', description: 'What Codex must know about a model: `ModelInfo` of its protocol' }
)

/** Codex's own prompt takes 4,000 tokens, and its catalog has no way to ask for it. */
const INSTRUCTIONS = catalog.instructions.join('\n')

/** Output tokens of a tool that Codex keeps at most, and the share of the context for one output. */
const MAX_TOOL_OUTPUT_TOKENS = 10_000
const TOOL_OUTPUT_SHARE = 0.25
/** Share of the context after which Codex compacts. The rest is for its request to summarize and for the summary. */
const COMPACT_SHARE = 0.8

/** Returns a model's entry in Codex's catalog, or undefined if it cannot chat. Codex refuses an incomplete entry. */
export function codexRecord(
  { publicName, metadata: { capabilities } }: Model,
  slug: string,
  { window }: Pick<ModelLimits, 'window'>
) {
  if (!capabilities.includes('completion')) return undefined
  const hasTools = capabilities.includes('tools')
  const thinks = capabilities.includes('thinking')
  return {
    slug,
    display_name: slug,
    description: slug === publicName ? null : publicName,
    base_instructions: INSTRUCTIONS,
    context_window: window,
    max_context_window: window,
    auto_compact_token_limit: Math.floor(window * COMPACT_SHARE),
    truncation_policy: {
      mode: 'tokens',
      limit: Math.min(MAX_TOOL_OUTPUT_TOKENS, Math.floor(window * TOOL_OUTPUT_SHARE))
    },
    input_modalities: capabilities.includes('vision') ? ['text', 'image'] : ['text'],
    default_reasoning_level: thinks ? 'medium' : null,
    supported_reasoning_levels: thinks ? catalog.levels : [],
    apply_patch_tool_type: hasTools ? 'freeform' : null,
    shell_type: hasTools ? 'unified_exec' : 'disabled',
    supports_parallel_tool_calls: hasTools,
    supports_reasoning_summaries: thinks,
    support_verbosity: false,
    experimental_supported_tools: [],
    visibility: 'list',
    supported_in_api: true,
    priority: 0
  }
}
