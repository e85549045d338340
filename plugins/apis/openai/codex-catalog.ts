import { Type } from 'typebox'
import type { ModelLimits } from '../../../core/answers/model-limits.ts'
import type { Model } from '../../../core/contracts/models.ts'
import { Loose } from '../../../core/http/request-fields.ts'

export const CodexModel = Loose(
  { slug: Type.String(), context_window: Type.Integer({ description: 'The same as max_input_tokens' }) },
  { title: 'CodexModel', description: 'What Codex must know about a model: `ModelInfo` of its protocol' }
)

/** Codex's own prompt takes 4,000 tokens, and its catalog has no way to ask for it. */
const INSTRUCTIONS = `You are a coding agent in the Codex CLI. You share a workspace with the user and work on the user's request until it is done.

- Read the files that matter before you change them. Follow the AGENTS.md files of the workspace.
- Use the tools. Do not guess what a file contains or what a command prints.
- Make the smallest change that solves the problem, in the style of the code around it. Do not touch unrelated code.
- Run the tests or the program to check your change, if you can.
- Do not commit, push or delete work unless the user asks for it.
- Finish with a short summary: what you changed, in which files, and what you could not check.

apply_patch takes a patch in this form, with paths relative to the workspace and a few unchanged lines for context:
*** Begin Patch
*** Update File: src/name.py
@@ def greet():
-    print("Hi")
+    print("Hello")
*** Add File: src/new.py
+print("New")
*** End Patch`

/** Output tokens of a tool that Codex keeps at most, and the share of the context for one output. */
const MAX_TOOL_OUTPUT_TOKENS = 10_000
const TOOL_OUTPUT_SHARE = 0.25
/** Share of the context after which Codex compacts. The rest is for its request to summarize and for the summary. */
const COMPACT_SHARE = 0.8

const LEVELS = [
  { effort: 'none', description: 'Answers without thinking' },
  { effort: 'low', description: 'Thinks briefly' },
  { effort: 'medium', description: 'Balances speed and depth' },
  { effort: 'high', description: 'Thinks at length' }
]

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
    supported_reasoning_levels: thinks ? LEVELS : [],
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
