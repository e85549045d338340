import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { EngineSettings } from '../../../core/config/model-settings.ts'
import type { Build } from '../../../core/contracts/builds.ts'
import { DEFAULT_LOAD_OPTIONS } from '../../../core/models/load-options.ts'
import type { EngineDeps } from '../../../runtimes/llama-server/engine.ts'
import type { LaunchSpec } from '../../../runtimes/llama-server/launch-spec.ts'
import { engineBuildFolder, ONE_THREAD } from '../../support/engine-build.ts'

const ROOT = fileURLToPath(new URL('../../../../', import.meta.url))

/** The demo model. */
export const MODEL = join(ROOT, 'plugins/models/storage/demo-model/tiny-chat-f16.gguf')

/** The real llama.cpp build of the tests. */
export function realBuild(): Build {
  return buildOf(join(engineBuildFolder(), 'llama-server'))
}

export function buildOf(server: string, given: Partial<Build> = {}): Build {
  const own = { id: 'test', kind: 'cpu', source: 'system', version: 'test', origin: server, devices: [] } as const
  return { ...own, directory: join(server, '..'), executables: { server }, digest: '0'.repeat(64), ...given } as Build
}

export const PLAIN_SETTINGS: EngineSettings = {
  arguments: [],
  environment: {},
  speculation: { ngram: false },
  loras: []
}

export function engineSpec(given: Partial<LaunchSpec> = {}): LaunchSpec {
  return {
    alias: 'corral/tiny-chat',
    mode: 'chat',
    modelPath: MODEL,
    options: { ...DEFAULT_LOAD_OPTIONS, num_ctx: 4096, num_parallel: 2, dtype: 'f16' },
    variant: {
      model: { owner: 'corral', name: 'tiny-chat' },
      label: 'F16',
      isDefault: true,
      publicName: 'corral/tiny-chat',
      key: 'corral/tiny-chat:f16',
      revision: '1',
      format: 'gguf',
      directory: join(MODEL, '..'),
      files: [],
      size: 0,
      digest: '0'.repeat(64),
      modifiedAt: '2026-01-01T00:00:00.000Z',
      origin: { kind: 'bundled', from: 'test' },
      metadata: { architecture: 'llama', capabilities: ['completion'], info: {} }
    },
    ...given
  }
}

export function engineDeps(runDirectory: string, given: Partial<EngineDeps> = {}): EngineDeps {
  const log = { debug: () => {}, warn: () => {} }
  return { log, runDirectory, loadTimeout: 60_000, hangTimeout: 0, extraArguments: ONE_THREAD, ...given }
}
