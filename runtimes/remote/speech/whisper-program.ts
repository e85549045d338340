import type { ServerProgram } from '../find-server.ts'
import SOURCE from './packages/whisper-source.json' with { type: 'json' }

/** Official archives. There are none for macOS. */
const ARCHIVES: Partial<Record<string, RegExp>> = {
  'linux x64': /^whisper-bin-ubuntu-x64\.tar\.gz$/,
  'linux arm64': /^whisper-bin-ubuntu-arm64\.tar\.gz$/,
  'win32 x64': /^whisper-bin-x64\.zip$/
}

export const WHISPER: ServerProgram = {
  title: 'whisper.cpp',
  executable: 'whisper-server',
  setting: 'speech.whisper_server',
  repository: 'ggml-org/whisper.cpp',
  archive: ARCHIVES[`${process.platform} ${process.arch}`],
  source: SOURCE,
  settings: { BUILD_SHARED_LIBS: 'OFF', WHISPER_BUILD_TESTS: 'OFF' }
}
