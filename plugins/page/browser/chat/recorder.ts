/** The file has 20 MB then. */
const MAX_RECORDING_MS = 600_000
/** Hertz. Models for speech use this rate. */
const RATE = 16_000

/**
 * Records the microphone as a WAV file with one channel, for ten minutes at most.
 * @param cancelled ends it without a result
 * @param onBegin gets a function that ends the recording
 * @throws DOMException if there is no microphone, or the user does not allow it; the reason of the signal
 */
export async function record(cancelled: AbortSignal, onBegin: (stop: () => void) => void): Promise<Blob> {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } })
  const parts: Blob[] = []
  try {
    cancelled.throwIfAborted()
    const recorder = new MediaRecorder(stream)
    const stop = () => recorder.state !== 'inactive' && recorder.stop()
    const timer = setTimeout(stop, MAX_RECORDING_MS)
    cancelled.addEventListener('abort', stop)
    recorder.ondataavailable = ({ data }) => parts.push(data)
    const ended = new Promise(resolve => (recorder.onstop = resolve))
    recorder.start()
    onBegin(stop)
    await ended
    clearTimeout(timer)
    cancelled.throwIfAborted()
  } finally {
    for (const track of stream.getTracks()) track.stop()
  }
  // Browsers record in formats that servers cannot read. Each can decode its own, and converts the rate.
  const decoder = new OfflineAudioContext(1, 1, RATE)
  const sound = await decoder.decodeAudioData(await new Blob(parts).arrayBuffer())
  const samples = Int16Array.from(sound.getChannelData(0), sample => Math.max(-1, Math.min(1, sample)) * 0x7fff)
  const bytes = samples.byteLength
  // A WAV file, in numbers of 32 bits: "RIFF", "WAVE", "fmt ", one channel of integers, 2 bytes of 16 bits, "data".
  const format = [0x20746d66, 16, 0x10001, RATE, RATE * 2, 0x100002]
  const header = [0x46464952, 36 + bytes, 0x45564157, ...format, 0x61746164, bytes]
  return new Blob([Uint32Array.from(header), samples], { type: 'audio/wav' })
}
