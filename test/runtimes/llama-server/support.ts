import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Build } from '../../../core/contracts/builds.ts'
import type { EngineDeps } from '../../../runtimes/llama-server/engine.ts'
import type { LaunchSpec } from '../../../runtimes/llama-server/launch-spec.ts'
import { engineBuildFolder } from '../../support/engine-build.ts'

const ROOT = fileURLToPath(new URL('../../../../', import.meta.url))

/** The demo model. */
export const MODEL = join(ROOT, 'plugins/models/storage/demo-model/tiny-chat-f16.gguf')

/** The real llama.cpp build of the tests. */
export function realBuild(): Build {
  return buildOf(join(engineBuildFolder(), 'llama-server'))
}

export function buildOf(server: string): Build {
  return {
    id: 'test',
    kind: 'cpu',
    source: 'system',
    version: 'test',
    directory: join(server, '..'),
    executables: { server },
    digest: '0'.repeat(64),
    origin: server,
    devices: []
  }
}

export function engineSpec(given: Partial<LaunchSpec> = {}): LaunchSpec {
  return {
    alias: 'corral/tiny-chat',
    mode: 'chat',
    modelPath: MODEL,
    options: {
      num_ctx: 4096,
      num_parallel: 2,
      n_gpu_layers: -1,
      cache_type_k: 'f16',
      cache_type_v: 'f16',
      dtype: 'f16'
    },
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
  return { log: { debug: () => {}, warn: () => {} }, runDirectory, loadTimeout: 60_000, ...given }
}
