import type { EngineProvider } from '../../../core/contracts/engines.ts'
import { definePlugin } from '../../../core/plugins/plugin.ts'
import { SpeechOptions } from './speech-options.ts'

/** The mode of the engines for each format. */
const MODES = new Map([
  ['ggml', 'transcribe'],
  ['onnx', 'speak']
])

export default definePlugin({
  name: 'speech',
  api: 1,
  description: 'Models that transcribe speech (whisper.cpp), and voices (piper)',
  optional: true,
  needs: ['engines', 'hardware'],
  options: SpeechOptions,
  setup({ log, paths: { home }, service }, options) {
    const deps = { options, home, hardware: service('hardware'), log }
    let provider: EngineProvider | undefined
    // Most servers have no models for speech.
    const load = async () => {
      const { createSpeechProvider } = await import('./speech-provider.ts')
      provider ??= createSpeechProvider(deps)
      return provider
    }
    service('engines').add({
      name: 'speech',
      serves: ({ format }, mode) => (MODES.get(format) === mode ? 1 : 0),
      // The programs have no options for loading.
      loadOptions: () => ({}),
      estimate: async (spec, waiting) => await (await load()).estimate!(spec, waiting),
      start: async (spec, waiting) => await (await load()).start(spec, waiting),
      logs: model => provider?.logs?.(model) ?? [],
      close: async () => await provider?.close?.()
    })
    return {}
  }
})
