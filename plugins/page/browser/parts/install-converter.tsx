import { useState } from 'preact/hooks'
import { ApiError, send, streamOf } from '../state/api.ts'
import { may } from '../state/me.ts'
import { texts } from '../texts/texts.ts'
import { attempt } from './controls.tsx'
import { Button } from './forms.tsx'

/** A button that installs the converter for SafeTensors models, and then shows its progress. */
export function InstallConverter({ onDone }: { onDone: () => unknown }) {
  const [status, setStatus] = useState('')
  if (!may('operator')) return null
  if (status !== '') return <p class="quiet">{status}</p>
  const install = async () => {
    setStatus(texts.peek().loading)
    for await (const items of streamOf(await send('POST', 'api/conversion/install', { body: {} }))) {
      for (const item of items) {
        if (!('data' in item)) continue
        const { error, code, status, completed, total } = JSON.parse(item.data)
        if (error) throw new ApiError(error, 200, code)
        setStatus(total ? `${status} ${Math.floor((100 * completed) / total)}%` : status)
      }
    }
  }
  const work = async () => {
    const isInstalled = await attempt(install)
    setStatus('')
    if (isInstalled) onDone()
  }
  return <Button onClick={work} text={texts.value.installConverter} />
}
