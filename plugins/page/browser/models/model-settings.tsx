import { useState } from 'preact/hooks'
import type { ReloadReport } from '../../../../core/contracts/native-records.ts'
import { isObject } from '../../../../core/system/json-object.ts'
import { notify } from '../parts/controls.tsx'
import { Actions, Button, Field, type FieldText, Form, parseObject, TextField, wordsIn } from '../parts/forms.tsx'
import { Fault } from '../parts/layout.tsx'
import { optionsIn, SettingFields, type SettingName, settingIn, splitOptions } from '../parts/setting-fields.tsx'
import { useReply } from '../parts/view-hooks.ts'
import { type ApiError, ask } from '../state/api.ts'
import { fill, texts } from '../texts/texts.ts'

interface ModelSettings {
  file: string
  settings: Record<string, unknown>
  revision: string
}

/** Settings with their own fields. */
const NAMES: readonly SettingName[] = [
  ...(['num_ctx', 'num_parallel', 'n_gpu_layers', 'cache_type_k', 'cache_type_v'] as const),
  ...(['temperature', 'keep_alive', 'pin'] as const)
]

export function ModelSettingsForm({ name, onDone }: { name: string; onDone: () => void }) {
  const t = texts.value
  const { reply, fault, again } = useReply<ModelSettings>(`api/models/settings?model=${encodeURIComponent(name)}`)
  const [refusal, setRefusal] = useState<{ message: string; code?: string } | undefined>(undefined)
  if (fault) return <Fault text={fault.message} />
  if (!reply) return <p class="quiet">{t.loading}</p>
  const { settings, revision, file } = reply
  const { keep_alive, pin, aliases, options: given, ...rest } = settings
  const options = isObject(given) ? given : {}
  const [ownOptions, otherOptions] = splitOptions(NAMES, options)
  const others = { ...rest, ...(Object.keys(otherOptions).length > 0 && { options: otherOptions }) }
  const save = async (text: FieldText) => {
    setRefusal(undefined)
    let wanted: Record<string, unknown>
    try {
      wanted = settingsIn(text)
    } catch (error) {
      setRefusal({ message: fill(t.notJson, { reason: (error as Error).message }) })
      return
    }
    try {
      const body = { model: name, settings: wanted, revision }
      const report = await ask<ReloadReport>('PUT', 'api/models/settings', { body })
      const result = report.applied.length === 0 ? t.settingsUnchanged : t.settingsSaved
      notify([result, ...report.unknown.map(({ message }) => message)].join(' '))
      onDone()
    } catch (error) {
      setRefusal(error as ApiError)
    }
  }
  return (
    // A new key makes the fields show the reloaded settings.
    <Form key={revision} class="form" onSubmit={save}>
      <p class="quiet">{fill(t.settingsIn, { file })}</p>
      <SettingFields
        model={name}
        names={NAMES}
        own={{ ...ownOptions, keep_alive, pin }}
        origin="settings"
        refusal={refusal?.message}
      />
      <Field
        label={t.aliases}
        name="aliases"
        autocomplete="off"
        defaultValue={Array.isArray(aliases) ? aliases.join(', ') : ''}
      />
      <TextField
        label={t.otherSettings}
        class="field mono"
        name="others"
        rows={5}
        spellcheck={false}
        placeholder={'{\n  "max_concurrent": 2,\n  "options": {"top_p": 0.9}\n}'}
        defaultValue={Object.keys(others).length > 0 ? JSON.stringify(others, undefined, 2) : ''}
      />
      {refusal && !settingIn(refusal.message, NAMES) && <Fault text={refusal.message} isAnnounced />}
      <Actions>
        {refusal?.code === 'settings_changed' && (
          <Button
            onClick={() => {
              setRefusal(undefined)
              again()
            }}
            text={t.readAgain}
          />
        )}
        <Button kind="main" type="submit" text={t.save} />
      </Actions>
    </Form>
  )
}

/** Reads the fields. Empty ones are not set. @throws SyntaxError unless the last field is a JSON object */
function settingsIn(text: FieldText): Record<string, unknown> {
  const settings = parseObject(text('others'))
  const options = { ...(isObject(settings.options) && settings.options), ...optionsIn(NAMES, text) }
  // Keep invalid groups, so that the server can refuse them.
  if (Object.keys(options).length > 0) settings.options = options
  const keepAlive = text('keep_alive')
  if (keepAlive !== '') settings.keep_alive = /^-?\d+(\.\d+)?$/.test(keepAlive) ? Number(keepAlive) : keepAlive
  if (text('pin') !== '') settings.pin = text('pin') === 'true'
  const aliases = wordsIn(text('aliases'))
  if (aliases.length > 0) settings.aliases = aliases
  return settings
}
