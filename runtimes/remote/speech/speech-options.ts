import { type Static, Type } from 'typebox'
import { Program } from '../../../core/config/core-schema.ts'
import { Address, releaseSettings } from '../release-settings.ts'

export const SpeechOptions = Type.Object(
  {
    whisper_server: Program({
      default: '',
      description: 'whisper-server of whisper.cpp; if empty, the one on PATH, of a release, or compiled from source'
    }),
    ...releaseSettings('whisper.cpp'),
    python: Program({
      default: '',
      description: 'Python with piper-tts and its server; if empty, the one piper on PATH uses, or a new environment'
    }),
    package_index: Address('', 'Package index to install piper from; if empty, the settings of pip and uv apply')
  },
  { restart: true, needsTrust: true }
)
export type SpeechOptions = Static<typeof SpeechOptions>
