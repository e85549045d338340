import { type Static, Type } from 'typebox'
import type { BroughtModel, Capability, Model } from '../../../core/contracts/models.ts'
import { parseModelName } from '../../../core/models/model-name.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { mistake, Program, type ProgramModel, type ProgramSettings, readProgram } from './program-settings.ts'

/** What models of a kind can always do, and what else unless `capabilities` says it. */
const CAPABILITIES: Record<ProgramSettings['kind'], { always: Capability[]; usual?: Capability[] }> = {
  chat: { always: ['completion'], usual: ['tools'] },
  embedding: { always: ['embedding'] },
  rerank: { always: ['rerank'] },
  transcribe: { always: ['audio', 'transcribe', 'translate'] },
  draw: { always: ['draw'], usual: ['edit_image'] }
}

export default definePlugin({
  name: 'engines',
  api: 1,
  description: 'Programs that serve models in the OpenAI format, started by their commands',
  needs: ['engines', 'catalog', 'hardware', 'scheduler'],
  options: Type.Object(
    {},
    {
      patternProperties: { '^': Program },
      examples: [
        {
          vllm: {
            command: 'vllm serve {model} --port {port} --enable-sleep-mode',
            kind: 'chat',
            ready: '/health',
            base: '/v1',
            port: 8000,
            model: 'qwen/qwen3-8b',
            parallel: 8,
            context: 32768,
            capabilities: ['tools'],
            memory: { host: '4GiB', gpu0: '20GiB' },
            sleep: { path: '/sleep?level=1', wake: '/wake_up', for: '1h' },
            paths: ['/v1/classify'],
            environment: { VLLM_SERVER_DEV_MODE: '1' },
            stop: 'docker stop vllm',
            directory: '/srv/vllm',
            start_timeout: '10m',
            stop_timeout: '5s'
          }
        }
      ],
      restart: true,
      needsTrust: true
    }
  ),
  async setup(context, options) {
    const { config, service, log } = context
    const programs = options as Record<string, Static<typeof Program>>
    const models = new Map<string, ProgramModel>()
    const brought: BroughtModel[] = []
    for (const [name, { engine, files }] of Object.entries(config.models)) {
      if (engine === undefined) continue
      const program = programs[engine]
      if (!program) {
        const list = Object.keys(programs).join(', ')
        const known = list ? `These exist: ${list}.` : 'There are none.'
        throw mistake(`models.${name}.engine`, `There is no program "${engine}" under "engines". ${known}`)
      }
      const { owner, name: own } = parseModelName(name)
      const settings = readProgram(engine, program)
      models.set(name.toLowerCase(), { program: settings, model: files ?? `${owner}/${own}` })
      const { always, usual = [] } = CAPABILITIES[settings.kind]
      brought.push({
        name,
        capabilities: [...always, ...(program.capabilities ?? usual), ...settings.paths],
        contextLength: settings.contextSize
      })
    }
    if (brought.length === 0) return {}
    // Most configurations have no programs.
    const { createProgramProvider } = await import('./program-provider.ts')
    const frozen = Object.freeze(brought)
    const find = ({ format, model, key }: Model) =>
      format === 'engines' ? (models.get(`${model.owner}/${model.name}`.toLowerCase()) ?? models.get(key)) : undefined
    service('catalog').add({ name: 'engines', models: () => frozen })
    service('engines').add(createProgramProvider(find, { log, hardware: service('hardware') }))
    const paths = new Set([...models.values()].flatMap(({ program }) => program.paths))
    if (paths.size === 0) return {}
    const { passedPathRoutes } = await import('./passed-paths.ts')
    return { routes: async app => passedPathRoutes(app, context, path => paths.has(path)) }
  }
})
