import type { AgentName } from './packages.ts'
import { COPY, PROMPT } from './scripted-model.ts'

/** What a program needs to know for a session. */
export interface Place {
  /** corral's address, without a path. */
  url: string
  model: string
  /** Its home folder. */
  home: string
  /** Context size in tokens. */
  context: number
  /** The reply of /v1/models, which contains a catalog for Codex. */
  models: object
}

/** What is tried with each agent, in the order of the table in docs/agents.md. */
export const TRIALS = ['session', 'interruption', 'full context', 'restart'] as const
export type Trial = (typeof TRIALS)[number]

export interface AgentProgram {
  title: string
  /** The API that it uses. */
  api: string
  /** Whether it offers tools. Without them the model writes its changes as text. */
  hasTools: boolean
  /** What the program itself cannot do, with any server. */
  lacks?: readonly Trial[]
  start(place: Place): Program
  /** Arguments that continue the last session with another prompt. */
  next?: readonly string[]
}

/** How to start an agent without a terminal. Texts and objects in `files` are below the home folder. */
export interface Program {
  args: string[]
  env?: Record<string, string>
  files?: Record<string, string | object>
}

/** What the user says when a session continues. */
const NEXT_PROMPT = 'Now say it in Latin.'

const toml = (values: Record<string, unknown>) =>
  Object.entries(values)
    .map(([key, value]) => `${key} = ${JSON.stringify(value)}\n`)
    .join('')

export const PROGRAMS: Record<AgentName, AgentProgram> = {
  'claude-code': {
    title: 'Claude Code',
    api: '/v1/messages',
    hasTools: true,
    next: ['-p', '--continue', NEXT_PROMPT],
    start: ({ url, model, context }) => ({
      args: ['-p', PROMPT, '--allowedTools', 'Read,Edit,Bash'],
      env: {
        ANTHROPIC_BASE_URL: url,
        ANTHROPIC_AUTH_TOKEN: 'unused',
        ANTHROPIC_MODEL: model,
        ANTHROPIC_DEFAULT_HAIKU_MODEL: model,
        ANTHROPIC_DEFAULT_SONNET_MODEL: model,
        ANTHROPIC_DEFAULT_OPUS_MODEL: model,
        CLAUDE_CODE_AUTO_COMPACT_WINDOW: String(context),
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
        DISABLE_AUTOUPDATER: '1'
      }
    })
  },
  codex: {
    title: 'Codex',
    api: '/v1/responses',
    hasTools: true,
    next: ['exec', 'resume', '--last', '--skip-git-repo-check', NEXT_PROMPT],
    start: ({ url, model, home, models }) => ({
      args: ['exec', '--skip-git-repo-check', '--sandbox', 'danger-full-access', PROMPT],
      files: {
        '.codex/models.json': models,
        '.codex/config.toml': `${toml({
          model,
          model_provider: 'corral',
          model_catalog_json: `${home}/.codex/models.json`,
          check_for_update_on_startup: false
        })}[model_providers.corral]\n${toml({ name: 'corral', base_url: `${url}/v1`, wire_api: 'responses' })}`
      }
    })
  },
  opencode: {
    title: 'opencode',
    api: '/v1/chat/completions',
    hasTools: true,
    next: ['run', '--continue', NEXT_PROMPT],
    start: ({ url, model, context }) => ({
      args: ['run', PROMPT],
      env: { OPENCODE_DISABLE_MODELS_FETCH: '1', OPENCODE_DISABLE_AUTOUPDATE: '1' },
      files: {
        '.config/opencode/opencode.json': {
          model: `corral/${model}`,
          small_model: `corral/${model}`,
          autoupdate: false,
          share: 'disabled',
          permission: 'allow',
          provider: {
            corral: {
              npm: '@ai-sdk/openai-compatible',
              options: { baseURL: `${url}/v1`, apiKey: 'unused' },
              models: { [model]: { tool_call: true, limit: { context, output: 8192 } } }
            }
          }
        }
      }
    })
  },
  qwen: {
    title: 'Qwen Code',
    api: '/v1/chat/completions',
    hasTools: true,
    next: ['--continue', '-p', NEXT_PROMPT],
    start: ({ url, model }) => ({
      args: ['--yolo', '-p', PROMPT],
      env: { OPENAI_BASE_URL: `${url}/v1`, OPENAI_API_KEY: 'unused', OPENAI_MODEL: model },
      files: {
        '.qwen/settings.json': {
          security: { auth: { selectedType: 'openai' } },
          general: { disableAutoUpdate: true, disableUpdateNag: true, enableAutoUpdate: false },
          privacy: { usageStatisticsEnabled: false },
          telemetry: { enabled: false }
        }
      }
    })
  },
  pi: {
    title: 'pi',
    api: '/v1/chat/completions',
    hasTools: true,
    next: ['--continue', '-p', NEXT_PROMPT],
    start: ({ url, model, context }) => ({
      args: ['-p', '--provider', 'corral', '--model', model, PROMPT],
      env: { PI_OFFLINE: '1', PI_SKIP_VERSION_CHECK: '1' },
      files: {
        '.pi/agent/models.json': {
          providers: {
            corral: {
              baseUrl: `${url}/v1`,
              api: 'openai-completions',
              apiKey: 'unused',
              models: [{ id: model, contextWindow: context, maxTokens: 8192, input: ['text'], reasoning: false }]
            }
          }
        }
      }
    })
  },
  aider: {
    title: 'aider',
    api: '/v1/chat/completions',
    hasTools: false,
    lacks: ['full context'],
    start: ({ url, model }) => ({
      args: [
        ...['--model', `openai/${model}`, '--edit-format', 'diff', '--yes-always', '--no-show-model-warnings'],
        ...['--no-check-update', '--analytics-disable', '--no-gitignore', '--auto-test'],
        ...['--test-cmd', `cp greeting.py ${COPY}`, '--message', PROMPT, 'greeting.py']
      ],
      env: { OPENAI_API_BASE: `${url}/v1`, OPENAI_API_KEY: 'unused' },
      files: { '.gitconfig': '[user]\nname = A\nemail = a@example.com\n' }
    })
  },
  cline: {
    title: 'Cline',
    api: '/v1/chat/completions',
    hasTools: true,
    lacks: ['restart'],
    start: ({ url, model }) => ({
      args: ['--auto-approve', 'true', PROMPT],
      files: {
        '.cline/data/settings/providers.json': {
          version: 1,
          lastUsedProvider: 'openai-compatible',
          modes: {},
          providers: {
            'openai-compatible': {
              settings: { provider: 'openai-compatible', apiKey: 'unused', model, baseUrl: `${url}/v1` },
              updatedAt: '2026-01-01T00:00:00.000Z',
              tokenSource: 'manual'
            }
          }
        }
      },
      env: { CLINE_TELEMETRY_DISABLED: '1', CLINE_NO_AUTO_UPDATE: '1' }
    })
  },
  continue: {
    title: 'Continue',
    api: '/v1/chat/completions',
    hasTools: true,
    // It gives up 2 s after its connection was lost.
    lacks: ['full context', 'restart'],
    start: ({ url, model, context, home }) => ({
      args: ['--auto', '--config', `${home}/config.yaml`, '-p', PROMPT],
      env: { CONTINUE_TELEMETRY_ENABLED: '0', CONTINUE_CLI_ENABLE_TELEMETRY: '0' },
      files: {
        'config.yaml': `name: corral\nversion: 0.0.1\nschema: v1\nmodels:\n  - ${JSON.stringify({
          name: 'corral',
          provider: 'openai',
          model,
          apiBase: `${url}/v1`,
          apiKey: 'unused',
          roles: ['chat', 'edit', 'apply'],
          capabilities: ['tool_use'],
          defaultCompletionOptions: { contextLength: context, maxTokens: 8192 }
        })}\n`
      }
    })
  },
  vibe: {
    title: 'Mistral Vibe',
    api: '/v1/chat/completions',
    hasTools: true,
    start: ({ url, model, context }) => ({
      args: ['--auto-approve', '--trust', '-p', PROMPT],
      files: {
        '.vibe/config.toml': `${toml({ active_model: 'corral', enable_update_checks: false, enable_telemetry: false })}
[[providers]]
${toml({ name: 'corral', api_base: `${url}/v1`, api_key_env_var: '', api_style: 'openai', backend: 'generic' })}
[[models]]
${toml({ name: model, provider: 'corral', alias: 'corral', auto_compact_threshold: Math.floor(context * 0.8) })}`
      }
    })
  },
  'mini-swe-agent': {
    title: 'mini-swe-agent',
    api: '/v1/chat/completions',
    hasTools: true,
    lacks: ['full context'],
    start: ({ url, model }) => ({
      args: ['--model', `openai/${model}`, '--yolo', '--exit-immediately', '--cost-limit', '0', '--task', PROMPT],
      env: {
        OPENAI_API_BASE: `${url}/v1`,
        OPENAI_API_KEY: 'unused',
        MSWEA_CONFIGURED: 'true',
        MSWEA_COST_TRACKING: 'ignore_errors',
        MSWEA_SILENT_STARTUP: '1'
      }
    })
  },
  openhands: {
    title: 'OpenHands',
    api: '/v1/chat/completions',
    hasTools: true,
    // Without a terminal, Ctrl+C has no effect until its answer is complete.
    lacks: ['interruption'],
    start: ({ url, model }) => ({
      args: ['--headless', '--override-with-envs', '--task', PROMPT],
      env: {
        LLM_BASE_URL: `${url}/v1`,
        LLM_API_KEY: 'unused',
        LLM_MODEL: `openai/${model}`,
        LITELLM_LOCAL_MODEL_COST_MAP: 'True',
        OPENHANDS_SUPPRESS_BANNER: '1'
      }
    })
  }
}
