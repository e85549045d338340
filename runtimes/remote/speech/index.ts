import { definePlugin } from '../../../core/plugins/plugin.ts'
import { lazyProvider } from '../lazy-provider.ts'
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
    service('engines').add(
      lazyProvider(
        'speech',
        ({ format }, mode) => (MODES.get(format) === mode ? 1 : 0),
        async () => (await import('./speech-provider.ts')).createSpeechProvider(deps)
      )
    )
    return {}
  }
})
