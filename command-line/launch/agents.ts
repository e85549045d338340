import { join } from 'node:path'
import { parse } from 'yaml'
import type { Change } from './settings-edit.ts'

/** What an agent is started with. */
export interface LaunchFacts {
  /** Address of the server, without a path. */
  url: string
  /** The key for the server, or `unused`. */
  key: string
  model: string
  /** Tokens that a prompt and its answer may have together, and tokens that the answer may have. */
  context: number
  answer: number
  images: boolean
  thinking: boolean
  /** The server's catalog for Codex. */
  catalog: unknown
  /** The agent's folder for files of corral's own. */
  folder: string
  user: UserPlace
}

export interface UserPlace {
  home: string
  env: NodeJS.ProcessEnv
  platform: NodeJS.Platform
  /** Returns the text of the user's file, or undefined if there is none. */
  read(path: string): string | undefined
}

/** How to start an agent. The variables and arguments need no undo. */
export interface Launch {
  /** Variables of the agent. Undefined removes one. */
  env?: Record<string, string | undefined>
  /** Arguments before those of the user. They must not contain the key, because other users can read them. */
  args?: string[]
  /** Files in the agent's folder, by name. They belong to corral. */
  own?: Record<string, string>
  /** The user's file that has to be changed, because the agent takes these settings from nowhere else. */
  changes?: { file: string; list: Change[]; hasKey?: boolean }
}

export interface Agent {
  /** Its name for people. */
  title: string
  /** Names of its program, in the order in which they are tried. */
  programs: string[]
  /** Command or address to install it. */
  install: string
  /** Tokens of its first prompt, with room for a first answer. */
  minContext: number
  /** Whether its model must call tools (default: true). */
  needsTools?: boolean
  plan(facts: LaunchFacts): Launch
}

/** Variable with the key for agents that let their settings name one. */
const KEY = 'CORRAL_API_KEY'
const json = (value: unknown) => `${JSON.stringify(value, undefined, 2)}\n`
/** Share of the context after which an agent should shorten the conversation. */
const COMPACT_SHARE = 0.8

/** Tested with the versions that `scripts/setup-agents.ts` installs. `docs/agents.md` lists what works with each. */
export const AGENTS: Record<string, Agent> = {
  claude: {
    title: 'Claude Code',
    programs: ['claude'],
    install: 'npm install -g @anthropic-ai/claude-code',
    minContext: 32_768,
    plan: ({ url, key, model, context, answer }) => ({
      env: {
        ANTHROPIC_BASE_URL: url,
        ANTHROPIC_AUTH_TOKEN: key,
        // Each of these would take precedence over the variables above.
        ANTHROPIC_API_KEY: undefined,
        CLAUDE_CODE_USE_BEDROCK: undefined,
        CLAUDE_CODE_USE_VERTEX: undefined,
        ANTHROPIC_MODEL: model,
        ANTHROPIC_SMALL_FAST_MODEL: model,
        ANTHROPIC_DEFAULT_OPUS_MODEL: model,
        ANTHROPIC_DEFAULT_SONNET_MODEL: model,
        ANTHROPIC_DEFAULT_HAIKU_MODEL: model,
        CLAUDE_CODE_SUBAGENT_MODEL: model,
        CLAUDE_CODE_MAX_OUTPUT_TOKENS: `${answer}`,
        CLAUDE_CODE_MAX_CONTEXT_TOKENS: `${context}`,
        CLAUDE_CODE_AUTO_COMPACT_WINDOW: `${context}`,
        // The header changes with every request, so the cached prompt would be processed again.
        CLAUDE_CODE_ATTRIBUTION_HEADER: '0'
      }
    })
  },
  codex: {
    title: 'Codex',
    programs: ['codex'],
    install: 'npm install -g @openai/codex',
    minContext: 24_576,
    plan({ url, key, model, context, catalog, folder }) {
      // JSON's strings and numbers are also TOML.
      const settings = {
        model,
        model_provider: 'corral',
        'model_providers.corral.name': 'corral',
        'model_providers.corral.base_url': `${url}/v1`,
        'model_providers.corral.wire_api': 'responses',
        'model_providers.corral.env_key': KEY,
        model_context_window: context,
        model_auto_compact_token_limit: Math.floor(context * COMPACT_SHARE),
        ...(catalog !== undefined && { model_catalog_json: join(folder, 'models.json') })
      }
      return {
        env: { [KEY]: key },
        args: Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${JSON.stringify(value)}`]),
        ...(catalog !== undefined && { own: { 'models.json': json(catalog) } })
      }
    }
  },
  opencode: {
    title: 'opencode',
    programs: ['opencode'],
    install: 'npm install -g opencode-ai',
    minContext: 20_480,
    plan({ url, key, model, context, answer, images, thinking }) {
      const about = {
        name: model,
        limit: { context, output: answer },
        tool_call: true,
        reasoning: thinking,
        attachment: images,
        modalities: { input: images ? ['text', 'image'] : ['text'], output: ['text'] }
      }
      const provider = {
        npm: '@ai-sdk/openai-compatible',
        name: 'corral',
        options: { baseURL: `${url}/v1`, apiKey: `{env:${KEY}}` },
        models: { [model]: about }
      }
      const settings = { provider: { corral: provider }, model: `corral/${model}`, small_model: `corral/${model}` }
      return { env: { [KEY]: key, OPENCODE_CONFIG_CONTENT: JSON.stringify(settings) } }
    }
  },
  qwen: {
    title: 'Qwen Code',
    programs: ['qwen'],
    install: 'npm install -g @qwen-code/qwen-code',
    minContext: 49_152,
    plan: ({ url, key, model, context, answer, folder }) => ({
      env: {
        OPENAI_BASE_URL: `${url}/v1`,
        OPENAI_API_KEY: key,
        OPENAI_MODEL: model,
        QWEN_CODE_MAX_OUTPUT_TOKENS: `${answer}`,
        QWEN_CODE_SYSTEM_DEFAULTS_PATH: join(folder, 'defaults.json')
      },
      args: ['--auth-type', 'openai', '--model', model],
      own: { 'defaults.json': json({ model: { generationConfig: { contextWindowSize: context } } }) }
    })
  },
  cline: {
    title: 'Cline',
    programs: ['cline'],
    install: 'npm install -g cline',
    minContext: 16_384,
    plan({ url, key, model, context, answer, user }) {
      const provider = 'openai-compatible'
      const base = user.env.CLINE_DATA_DIR ?? join(user.env.CLINE_DIR ?? join(user.home, '.cline'), 'data')
      const baseUrl = `${url}/v1`
      const settings = { provider, apiKey: key, model, baseUrl, contextWindow: context, maxTokens: answer }
      const entry = { settings, updatedAt: '2026-01-01T00:00:00.000Z', tokenSource: 'manual' }
      return {
        args: ['-P', provider, '-m', model],
        // Cline's background process is shared by all its sessions, so that variables would also affect others.
        changes: {
          file: user.env.CLINE_PROVIDER_SETTINGS_PATH ?? join(base, 'settings', 'providers.json'),
          list: [
            { path: ['version'], value: 1, stays: true },
            { path: ['providers', provider], value: entry, mark: ['settings', 'baseUrl'] }
          ],
          hasKey: true
        }
      }
    }
  },
  continue: {
    title: 'Continue',
    programs: ['cn'],
    install: 'npm install -g @continuedev/cli',
    minContext: 16_384,
    plan({ url, key, model, context, answer, images, folder, user }) {
      const file = join(user.env.CONTINUE_GLOBAL_DIR ?? join(user.home, '.continue'), 'config.yaml')
      const theirs = (parse(user.read(file) ?? '') ?? {}) as { models?: unknown[] }
      const about = {
        name: 'corral',
        provider: 'openai',
        model,
        apiBase: `${url}/v1`,
        apiKey: `\${{ secrets.${KEY} }}`,
        roles: ['chat', 'edit', 'apply'],
        capabilities: images ? ['tool_use', 'image_input'] : ['tool_use'],
        defaultCompletionOptions: { contextLength: context, maxTokens: answer }
      }
      const settings = { name: 'corral', version: '0.0.1', schema: 'v1', ...theirs }
      return {
        env: { [KEY]: key },
        args: ['--config', join(folder, 'config.yaml')],
        // JSON is also YAML. The first model is the one that it uses.
        own: { 'config.yaml': json({ ...settings, models: [about, ...(theirs.models ?? [])] }) }
      }
    }
  },
  pi: {
    title: 'pi',
    programs: ['pi'],
    install: 'npm install -g @mariozechner/pi-coding-agent',
    minContext: 8192,
    plan({ url, key, model, context, answer, images, thinking, folder }) {
      const about = {
        id: model,
        name: model,
        reasoning: thinking,
        input: images ? ['text', 'image'] : ['text'],
        contextWindow: context,
        maxTokens: answer,
        cost: { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 }
      }
      const provider = { baseUrl: `${url}/v1`, apiKey: KEY, api: 'openai-completions', models: [about] }
      return {
        env: { [KEY]: key },
        args: ['-e', join(folder, 'corral.js'), '--provider', 'corral', '--model', model],
        own: { 'corral.js': `export default pi => pi.registerProvider('corral', ${JSON.stringify(provider)})\n` }
      }
    }
  },
  vibe: {
    title: 'Mistral Vibe',
    programs: ['vibe'],
    install: 'uv tool install mistral-vibe',
    minContext: 16_384,
    plan({ url, key, model, context, images }) {
      const provider = { name: 'corral', api_base: `${url}/v1`, api_key_env_var: KEY, api_style: 'openai' }
      const about = {
        name: model,
        provider: 'corral',
        alias: 'corral',
        supports_images: images,
        max_context_length: context,
        auto_compact_threshold: Math.floor(context * COMPACT_SHARE)
      }
      return {
        env: {
          [KEY]: key,
          VIBE_PROVIDERS: JSON.stringify([{ ...provider, backend: 'generic' }]),
          VIBE_MODELS: JSON.stringify([about]),
          VIBE_ACTIVE_MODEL: 'corral'
        }
      }
    }
  },
  aider: {
    title: 'aider',
    programs: ['aider'],
    install: 'uv tool install --python 3.12 aider-chat',
    minContext: 8192,
    needsTools: false,
    plan({ url, key, model, context, answer, images, folder }) {
      const name = `openai/${model}`
      const about = {
        max_tokens: answer,
        max_input_tokens: context,
        max_output_tokens: answer,
        input_cost_per_token: 0,
        output_cost_per_token: 0,
        litellm_provider: 'openai',
        mode: 'chat',
        supports_vision: images
      }
      return {
        env: {
          OPENAI_API_BASE: `${url}/v1`,
          OPENAI_API_KEY: key,
          AIDER_MODEL: name,
          AIDER_WEAK_MODEL: name,
          AIDER_MODEL_METADATA_FILE: join(folder, 'models.json')
        },
        own: { 'models.json': json({ [name]: about }) }
      }
    }
  },
  zed: {
    title: 'Zed',
    programs: ['zed', 'zeditor', 'zedit'],
    install: 'https://zed.dev/download',
    minContext: 24_576,
    plan({ url, key, model, context, answer, images, user }) {
      const { home, env, platform } = user
      const windows = join(env.APPDATA ?? join(home, 'AppData', 'Roaming'), 'Zed')
      const linux = join((platform === 'linux' && env.XDG_CONFIG_HOME) || join(home, '.config'), 'zed')
      const about = {
        name: model,
        display_name: model,
        max_tokens: context,
        max_output_tokens: answer,
        capabilities: { tools: true, images, parallel_tool_calls: true, prompt_cache_key: false }
      }
      return {
        env: { [KEY]: key },
        changes: {
          file: join(platform === 'win32' ? windows : linux, 'settings.json'),
          list: [
            {
              path: ['language_models', 'openai_compatible', 'corral'],
              value: { api_url: `${url}/v1`, available_models: [about] },
              mark: []
            },
            { path: ['agent', 'default_model'], value: { provider: 'corral', model }, mark: ['provider'] }
          ]
        }
      }
    }
  },
  vscode: {
    title: 'VS Code',
    programs: ['code', 'code-insiders'],
    install: 'https://code.visualstudio.com/download',
    minContext: 24_576,
    plan({ url, key, model, context, answer, images, thinking, user }) {
      const { home, env, platform } = user
      const folders: Partial<Record<NodeJS.Platform, string>> = {
        darwin: join(home, 'Library', 'Application Support'),
        win32: env.APPDATA ?? join(home, 'AppData', 'Roaming')
      }
      const about = {
        id: model,
        name: model,
        url: `${url}/v1/chat/completions`,
        toolCalling: true,
        vision: images,
        thinking,
        // VS Code adds both numbers.
        maxInputTokens: context - answer,
        maxOutputTokens: answer
      }
      const group = {
        name: 'corral',
        vendor: 'customendpoint',
        apiKey: key,
        apiType: 'chat-completions',
        models: [about]
      }
      const folder = folders[platform] ?? env.XDG_CONFIG_HOME ?? join(home, '.config')
      return {
        changes: {
          file: join(folder, 'Code', 'User', 'chatLanguageModels.json'),
          list: [{ path: [{ name: 'corral' }], value: group, mark: [] }],
          hasKey: true
        }
      }
    }
  },
  openhands: {
    title: 'OpenHands',
    programs: ['openhands'],
    install: 'uv tool install --python 3.12 openhands',
    minContext: 16_384,
    plan: ({ url, key, model }) => ({
      env: { LLM_BASE_URL: `${url}/v1`, LLM_API_KEY: key, LLM_MODEL: `openai/${model}` },
      args: ['--override-with-envs']
    })
  }
}
